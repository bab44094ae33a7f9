#pragma once
// Discrete Fourier transforms of panels of tokens (nn/kernels/token_panels.h), and products of spectra. The two halves
// of a panel's row are the real and the imaginary parts of 32 numbers: tokens t and t + 32 are transformed as one
// complex signal. A map with real coefficients keeps them apart.
#include <cstdint>
#include <vector>

#include "nn/kernels/token_panels.h"

namespace tessera::nn::kernels {

/// Rows of kPanelTokens numbers; the distance between two is counted in rows.
template <class T>
struct PanelRows {
  T* at;
  std::int64_t distance = 1;
};

/// Transforms of one length, by Stockham's algorithm (Cochran et al. 1967): factors of 8, 4, 2 and other primes.
class PanelFourier {
 public:
  static constexpr std::int64_t kLargestRadix = 61;
  /// Whether no prime factor of the length is larger: a factor costs its square.
  static bool takes(std::int64_t length);
  explicit PanelFourier(std::int64_t length);

  std::int64_t length() const { return length_; }
  /// y_f = sum_j x_j exp(-2 pi i f j / length); inverse: of exp(+2 pi i ...). Not scaled. x and y are not the same.
  /// scratch: [length, kPanelTokens].
  void transform(const PanelRows<const float>& x, const PanelRows<float>& y, float* scratch, bool inverse) const;

  struct Pass {
    std::int64_t radix, groups, stride;  // groups * radix: what is left of the length; stride: what was done of it
    std::vector<float> twiddles;         // [groups, radix - 1] pairs
    std::vector<float> roots;            // of unity, [radix] pairs
  };

 private:
  std::int64_t length_;
  std::vector<Pass> passes_;
};

/// A matrix of complex numbers for each of some frequencies, [frequencies, rows, columns] of pairs. Turned: the
/// transpose is meant.
struct SpectralMatrices {
  const float* at;
  std::int64_t rows, columns;
  bool turned, conjugate;
};
/// y [frequencies, results, 64] = matrix x [frequencies, inputs, 64], for frequencies first to last.
void spectral_products(const SpectralMatrices& matrices, std::int64_t first, std::int64_t last, const float* x,
                       float* y);
/// sums [frequencies, rows, columns] of pairs += x conj(g), over the tokens; x: [frequencies, columns, 64], g:
/// [frequencies, rows, 64].
void spectral_gradients(std::int64_t rows, std::int64_t columns, std::int64_t first, std::int64_t last, const float* x,
                        const float* g, float* sums);

}  // namespace tessera::nn::kernels
