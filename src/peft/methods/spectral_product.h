#pragma once
// The product of a layer whose weight gains a matrix of few frequencies, D = factor * Re ifft2(S): y gains factor * Re
// ifft(S' conj(fft(x)')), which takes two transforms for each token and no matrix.
#include <cstdint>

#include "tessera/nn/weight.h"

namespace tessera::peft {

/// places: int64 [n], of the numbers in the flat spectrum [out, in].
struct Spectrum {
  at::Tensor places;
  double factor = 1.0;
};

/// x W^T + bias + x D^T as one node on the CPU; x: [..., in], numbers: [n], W frozen. Keeps x alone. Transforms in
/// float32, some tokens at a time.
at::Tensor spectral_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                            const at::Tensor& numbers, const Spectrum& spectrum);

}  // namespace tessera::peft
