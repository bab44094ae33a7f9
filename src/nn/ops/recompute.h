#pragma once
// Activations that are cheap to compute (norms, gates) are not kept for backward: activation checkpointing (Chen et al.
// 2016) of single operations. A linear layer that needs one in backward keeps the inputs of the operation that made it,
// which that operation keeps too, and computes it again. The recipe is attached to the tensor's storage, so that views
// and identity nodes keep it.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <vector>

namespace tessera::nn {

using Recompute = std::function<at::Tensor(const std::vector<at::Tensor>& sources)>;

/// Computes y again and, in the same pass, the gradients of its sources for `gradient`, a gradient of y. The operation
/// that made y finds them there in its own backward, which comes next.
using RecomputeWithGradients =
    std::function<at::Tensor(const std::vector<at::Tensor>& sources, const at::Tensor& gradient)>;

/// From now on keep_input(y) keeps `sources` instead of y. compute(sources) must give y's bits again and read nothing
/// else that may change before backward (of a parameter, it holds a copy). y: contiguous, the whole of a storage that
/// nobody else has yet. `with_gradients` is used where y has a single consumer.
void set_recipe(const at::Tensor& y, std::vector<at::Tensor> sources, Recompute compute,
                RecomputeWithGradients with_gradients = {});

/// y = then(x): y has x's recipe, continued, if x has one.
void extend_recipe(const at::Tensor& y, const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> then);

/// compute(sources), with that recipe where gradients are recorded; autograd records what `compute` does.
at::Tensor recomputed_in_backward(std::vector<at::Tensor> sources, Recompute compute);

/// For a node that needs its input x in backward: appends to `saved`, which goes to save_for_backward(), x or the
/// sources of its recipe. Nothing else may follow in `saved`; one input for a node. A tensor that needs no gradient
/// (its producer keeps nothing), or that was written to since its recipe was set, or whose sources were, is kept
/// itself.
void keep_input(torch::autograd::AutogradContext* context, const at::Tensor& x, torch::autograd::variable_list& saved);
/// In backward: x, or x computed again, which nodes with the same input share. `begin`: the size of `saved` before
/// keep_input(). gradient: of x, what the node is going to return, where it is known already.
at::Tensor kept_input(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& saved,
                      std::size_t begin, const at::Tensor& gradient = {});

}  // namespace tessera::nn
