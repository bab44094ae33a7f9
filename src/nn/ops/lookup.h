#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace tessera::nn {

/// Where the backward of a tied output head leaves the table's gradient for the lookup of the same pass, whose backward
/// can only run after it: one [num, dim] buffer then takes both, instead of two that are added.
struct SharedGradient : torch::CustomClassHolder {
  at::Tensor value;
};
using GradientSlot = c10::intrusive_ptr<SharedGradient>;

/// Rows of table [num, dim]: ids [...] int64 -> [..., dim]. Backward adds rows into one table, zeroed or taken from the
/// slot, in the order of the ids, so its bits depend on nothing else; lookups of `padding_idx` (negative: none) leave
/// no gradient, as in torch.nn.Embedding. Not on the CPU the slot is left empty, as by the head. DataError names an id
/// outside the table.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, const GradientSlot& slot = {},
                  std::int64_t padding_idx = -1);

}  // namespace tessera::nn
