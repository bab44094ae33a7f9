#pragma once
// Folding adapters into the weights they adapt.
#include <string>

#include "peft/method.h"

namespace tessera::peft {

/// The adapters' values, whole, of an unsharded model.
Values adapter_values(const nn::HookedModule& model);

/// A model's adapters and the parameters that they change.
class Merger {
 public:
  /// adapters: all their values, whole, by full name. ConfigError where the method is no change of weights.
  /// device: computes, and holds the adapters.
  Merger(const nn::HookedModule& model, const PeftMethod& method, Values adapters, at::Device device);
  /// The whole value of one of the base model's parameters: with its adapter folded in, on the device; without one as
  /// it is.
  at::Tensor merged(const std::string& parameter, const at::Tensor& value) const;

 private:
  struct Adapted {
    Slot slot;
    Values values;  // by names below the slot
  };
  const PeftMethod& method_;
  at::Device device_;
  std::map<std::string, Adapted> slots_;
};

/// Merges every adapter of an unsharded model and removes it.
void merge_adapters(nn::HookedModule& model, const PeftMethod& method);

}  // namespace tessera::peft
