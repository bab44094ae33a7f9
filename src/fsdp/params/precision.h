#pragma once
#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

#include "fsdp/plan/flat_layout.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// Casts the defined floating tensors; autograd follows.
void cast_floating(const std::vector<at::Tensor*>& tensors, at::ScalarType dtype);

/// Brings the defined tensors to the device; autograd follows.
void move_to(at::Device device, const std::vector<at::Tensor*>& tensors);

/// The dtype that a module sees for a parameter stored as `stored`.
at::ScalarType compute_dtype(at::ScalarType stored, const MixedPrecision& precision);

/// The dtype in which gradients of a segment are summed.
at::ScalarType reduce_dtype(const Segment& segment, const MixedPrecision& precision);

/// Casts the floating buffers of the tree, once; those of ignored modules stay.
void cast_buffers(torch::nn::Module& root, const std::unordered_set<const torch::nn::Module*>& ignored,
                  const MixedPrecision& precision);

/// Brings all buffers of the tree to the device.
void move_buffers(torch::nn::Module& root, at::Device device);

}  // namespace tessera::fsdp
