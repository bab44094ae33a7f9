#pragma once
// What is made of small tensors (an adapter's matrix, two factors, a turned input; norms of heads) is not kept for
// backward: a node keeps the tensors, and the layer's input in the way of nn/ops/recompute.h, and makes it again.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <vector>

namespace tessera::nn {

/// By differentiable operations. It is called again in backward, where this thread's random numbers are those of the
/// first call.
using Make = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& tensors)>;

/// In a node's forward; one a node.
void save_make(torch::autograd::AutogradContext* context, Make make);

/// In its backward: what `make` makes of the tensors, recorded.
class Remade {
 public:
  /// tensors: the saved ones. Those that need a gradient have it found.
  Remade(torch::autograd::AutogradContext* context, at::ArrayRef<at::Tensor> tensors);
  const at::Tensor& operator[](std::size_t i) const { return results_[i]; }
  /// One for each of the tensors, from one for each result; undefined: no gradient.
  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& of_results) const;

 private:
  std::vector<at::Tensor> leaves_, results_;
};

/// f(x, tensors) as one node, made again whole in backward: for what is cheap beside the layer's product. Where there
/// are no kernels of ours autograd records f as it is.
at::Tensor remade(const at::Tensor& x, const std::vector<at::Tensor>& tensors,
                  std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& tensors)> f);

}  // namespace tessera::nn
