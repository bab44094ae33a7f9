#pragma once
// Activations that are cheap to compute (norms, gates) are not kept for backward. Whoever would keep one keeps what it
// was computed from, which its producer keeps anyway, and computes it again: checkpointing (Chen et al. 2016) of single
// operations. The recipe lies with the tensor's storage, so that views and identity nodes do not lose it.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <vector>

namespace tessera::nn {

using Remake = std::function<at::Tensor(const std::vector<at::Tensor>& sources)>;

/// Gives y again and does, in the same pass, what y's producer will be asked for next: the gradients of its inputs, for
/// `gradient` of y, which it finds there.
using RemakeAhead = std::function<at::Tensor(const std::vector<at::Tensor>& sources, const at::Tensor& gradient)>;

/// From now on keep_input(y) keeps `sources` instead. make(sources) must give y's bits again and read nothing that may
/// change before backward: of a parameter, a copy. y: contiguous, the whole of a storage that nobody else has yet.
/// `ahead` serves an only consumer.
void set_recipe(const at::Tensor& y, std::vector<at::Tensor> sources, Remake make, RemakeAhead ahead = {});

/// y = then(x): y has x's recipe, continued, if x has one.
void extend_recipe(const at::Tensor& y, const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> then);

/// make(sources), with that recipe where gradients are recorded; make may be anything that autograd follows.
at::Tensor remakable(std::vector<at::Tensor> sources, Remake make);

/// For a node that needs its input x in backward: appends to `saved`, which goes to save_for_backward(), x or what it
/// is made from. Nothing else may follow in `saved`; one input for a node. A tensor that needs no gradient (its
/// producer keeps nothing), or that was written to since its recipe was set, or whose sources were, is kept itself.
void keep_input(torch::autograd::AutogradContext* context, const at::Tensor& x, torch::autograd::variable_list& saved);
/// In backward: x, or x made again, which nodes with the same input share. `begin`: the size of `saved` before
/// keep_input(). gradient: of x, what the node is going to return, where it is known already.
at::Tensor kept_input(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& saved,
                      std::size_t begin, const at::Tensor& gradient = {});

}  // namespace tessera::nn
