#pragma once
// libtorch's own generators of random numbers, which modules of users draw from (at::dropout). They belong to the
// process: ranks that are threads share them.
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "base/scoped_value.h"
#include "tensor/rng.h"

namespace tessera::tensor {

/// Where they are: of the CPU, and of the device that is current in this thread, if there is an accelerator.
class GeneratorStates {
 public:
  /// Reads them: some kilobytes and a microsecond.
  static GeneratorStates now();
  GeneratorStates() = default;
  explicit GeneratorStates(std::map<std::string, at::Tensor> states) : states_(std::move(states)) {}

  /// Puts back those that are held here.
  void restore() const;
  bool empty() const { return states_.empty(); }
  bool operator==(const GeneratorStates& other) const;
  /// By the device's type ("cpu", "cuda"): [bytes] uint8 on the CPU, as torch.get_rng_state() gives them.
  const std::map<std::string, at::Tensor>& states() const { return states_; }

 private:
  std::map<std::string, at::Tensor> states_;
};

/// What is drawn while it lives, from this thread's stream or from libtorch, changes nothing of what is drawn after it.
class RandomGuard {
 public:
  RandomGuard() : stream_(random_state(), random_state()), generators_(GeneratorStates::now()) {}
  ~RandomGuard();
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  ScopedValue<RandomState> stream_;
  GeneratorStates generators_;
};

}  // namespace tessera::tensor
