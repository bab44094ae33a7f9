#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::tensor {

/// 1-D, contiguous, in a mapping of its own: pages come zeroed from the system when they are first written and go back
/// when it is freed. For what lives as long as a run (masters, optimizer states), which would split up the memory that
/// steps use again and again, and for what must not stay resident between steps (gradients beside offloaded state).
at::Tensor mapped_zeros(std::int64_t numel, at::ScalarType dtype);

/// 1-D zeros that live as long as a run: mapped on the CPU, from the allocator of any other device.
at::Tensor lasting_zeros(std::int64_t numel, at::ScalarType dtype, at::Device device);

}  // namespace tessera::tensor
