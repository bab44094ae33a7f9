#pragma once
// Linear layers of one shape, each of which gets a group of the rows (the experts of a mixture), as one product on
// devices that have such products. N: rows of all groups, one group behind another.
#include <ATen/core/Tensor.h>

#include <vector>

#include "nn/ops/expert_rows.h"
#include "tessera/nn/linear.h"

namespace tessera::nn {

using Linears = std::vector<const Linear*>;

/// Whether grouped_linear() takes these layers, as they are now, for rows of the tokens x [T, in]: on another device
/// than the CPU, in bfloat16, without bias, with no adapter or with LoRA alone (dropout: in passes whose rows have
/// keys, tensor/rng.h), sides and ranks multiples of 8; packed ones, all of which are unpacked for each product, where
/// there are no fewer tokens than layers.
bool can_group(const at::Tensor& x, const Linears& layers);

/// What each layer makes of its rows of x [N, in]: [N, out]. Where anything trains, no layer may be without rows: its
/// gradient is not zero on every GPU. Draws as layer after layer would, kDrawsOfExpert apart.
at::Tensor grouped_linear(const at::Tensor& x, const Linears& layers, const ExpertRows& rows);

}  // namespace tessera::nn
