#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::tensor {

/// 1-D, contiguous, for what lives as long as a run (masters, optimizer states): pages come zeroed from the system when
/// they are first written, and apart from the memory that steps use again and again, which such blocks would split up.
at::Tensor lasting_zeros(std::int64_t numel, at::ScalarType dtype);

}  // namespace tessera::tensor
