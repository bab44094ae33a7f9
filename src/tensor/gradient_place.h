#pragma once
// Lets the backward of an operation write a parameter's gradient where it is collected, instead of making a tensor that
// is copied there.
//
//   if (auto prepared = tensor::reserve_gradient(weight)) {
//     write or, when prepared->filled, add to prepared->memory;
//     prepared->place->commit(prepared);
//   }
//
// and return no gradient to autograd. Where the gradient is known in forward already, all but the commit may happen
// there.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>

namespace tessera::tensor {

class GradientPlace;

struct PreparedGradient {
  at::Tensor memory;    // of the parameter's shape, in the dtype in which gradients are summed over ranks
  bool filled = false;  // holds a gradient already: add to it
  GradientPlace* place = nullptr;
};

/// Set as a parameter's post-accumulate hook, so that what reaches the parameter through autograd ends here, too.
class GradientPlace : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Null when someone else holds the place, or there is none now. Dropping the result without a commit is fine; its
  /// memory counts for nothing then. Until the commit the memory may be moved (prepared->memory changes).
  virtual std::shared_ptr<PreparedGradient> reserve() = 0;
  /// Inside a backward.
  virtual void commit(const std::shared_ptr<PreparedGradient>& prepared) = 0;
};

/// Its gradients go elsewhere.
bool has_gradient_place(const at::Tensor& parameter);

/// Null when the tensor is no leaf with a place, too.
std::shared_ptr<PreparedGradient> reserve_gradient(const at::Tensor& parameter);

}  // namespace tessera::tensor
