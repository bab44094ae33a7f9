#pragma once
// The multiplicative dropout of OFT and BOFT: in training some of a layer's rotations are left out.
#include <ATen/core/Tensor.h>

namespace tessera::peft {

/// turns [blocks, n, n] with floor(p * blocks) of them, drawn from this thread's stream, replaced by the identity. As
/// PEFT's MultiplicativeDropoutLayer; one block alone stays.
at::Tensor with_dropped_blocks(const at::Tensor& turns, double p);

/// The same for turns [factors, blocks, n, n], in one factor that is drawn.
at::Tensor with_dropped_factor(const at::Tensor& turns, double p);

}  // namespace tessera::peft
