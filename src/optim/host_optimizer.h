#pragma once
// For optimizers that compute on the CPU alone, of parameters that lie on another device: the optimizer has copies of
// these, and its state lies, in the host's memory. Parameters and gradients are copied there in each step, and the
// parameters back.
#include <functional>
#include <memory>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

class HostOptimizer final : public Optimizer {
 public:
  /// make: the optimizer, of parameters in the host's memory.
  using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor> parameters)>;
  HostOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const Make& make);

  void step() override;
  bool collective() const override { return optimizer_->collective(); }
  bool runs_anywhere() const override { return true; }
  std::vector<StateSlice> state() override { return optimizer_->state(); }
  Optimizer& computing() override { return *optimizer_; }

 private:
  std::vector<at::Tensor> copies_;  // of the parameters, with their gradients
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace tessera::optim
