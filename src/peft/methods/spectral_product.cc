#include "peft/methods/spectral_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTokens = 128;  // transformed at a time

/// Of a real signal's transform half is stored: what belongs to `frequency` of `length` is at `place`, conjugated if it
/// is of the other half.
struct HalfPlace {
  std::int64_t place;
  bool conjugate;
  HalfPlace(std::int64_t frequency, std::int64_t length)
      : place(2 * frequency > length ? length - frequency : frequency), conjugate(2 * frequency > length) {}
};

/// The rows and columns of the numbers.
struct Frequencies {
  std::vector<std::int64_t> out, in;
  Frequencies(const at::Tensor& places, std::int64_t columns) {
    const auto* place = places.const_data_ptr<std::int64_t>();
    for (std::int64_t k = 0; k < places.numel(); ++k) {
      out.push_back(place[k] / columns);
      in.push_back(place[k] % columns);
    }
  }
};

/// The transforms of rows [N, length], as [N, length / 2 + 1] of pairs.
at::Tensor transforms(const at::Tensor& rows) {
  return at::view_as_real(at::fft_rfft(rows.to(at::kFloat), std::nullopt, 1));
}

/// What a number adds to half a transform: itself times what stands at `source` of another.
struct Term {
  std::int64_t source, target;
  float real, imaginary;  // factors of the two parts
};

/// Re ifft of the numbers at frequencies p, each times the conjugate of a transform at its q, is a real signal, whose
/// own transform has the mean of what stands at p and of the conjugate of what stands at -p.
std::vector<Term> terms(const float* numbers, const std::vector<std::int64_t>& p, const std::vector<std::int64_t>& q,
                        std::int64_t from, std::int64_t to) {
  std::vector<Term> out;
  for (std::size_t k = 0; k < p.size(); ++k) {
    const HalfPlace source(q[k], from);
    const float number = numbers[k] / 2, conjugated = source.conjugate ? number : -number;
    const auto opposite = p[k] == 0 ? 0 : to - p[k];
    if (2 * p[k] <= to) out.push_back({source.place, p[k], number, conjugated});
    if (2 * opposite <= to) out.push_back({source.place, opposite, number, -conjugated});
  }
  return out;
}

/// Rows [N, to] of transforms f [N, from / 2 + 1, 2].
at::Tensor signals(const at::Tensor& f, const std::vector<Term>& terms, std::int64_t to) {
  const auto n = f.size(0), columns = 2 * f.size(1), targets = 2 * (to / 2 + 1);
  const auto half = at::zeros({n, to / 2 + 1, 2}, f.options());
  for (std::int64_t row = 0; row < n; ++row) {
    const auto* x = f.const_data_ptr<float>() + row * columns;
    auto* y = half.mutable_data_ptr<float>() + row * targets;
    for (const auto& term : terms) {
      y[2 * term.target] += term.real * x[2 * term.source];
      y[2 * term.target + 1] += term.imaginary * x[2 * term.source + 1];
    }
  }
  return at::fft_irfft(at::view_as_complex(half), to, 1);
}

/// sums[k] += Re of the k-th pair's product, over the tokens of two transforms.
void add_products(const at::Tensor& f, const at::Tensor& g, const std::vector<Term>& pairs, float* sums) {
  for (std::int64_t row = 0; row < f.size(0); ++row) {
    const auto* u = f.const_data_ptr<float>() + row * 2 * f.size(1);
    const auto* v = g.const_data_ptr<float>() + row * 2 * g.size(1);
    for (std::size_t k = 0; k < pairs.size(); ++k) {
      const auto& pair = pairs[k];
      sums[k] +=
          u[2 * pair.source] * v[2 * pair.target] + pair.imaginary * u[2 * pair.source + 1] * v[2 * pair.target + 1];
    }
  }
}

/// What the numbers' gradient is made of: x's transform at their columns, times g's at their rows.
std::vector<Term> pairs(const Frequencies& at, std::int64_t in, std::int64_t out) {
  std::vector<Term> found;
  for (std::size_t k = 0; k < at.out.size(); ++k) {
    const HalfPlace q(at.in[k], in), p(at.out[k], out);
    found.push_back({q.place, p.place, 1, p.conjugate != q.conjugate ? 1.0f : -1.0f});
  }
  return found;
}

/// f(begin, count) for some tokens after the other.
template <class F>
void for_tokens(std::int64_t tokens, const F& f) {
  for (std::int64_t begin = 0; begin < tokens; begin += kTokens) f(begin, std::min(kTokens, tokens - begin));
}

class SpectralProduct : public torch::autograd::Function<SpectralProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            const std::optional<at::Tensor>& bias, const nn::Weight& weight, const Spectrum& spectrum) {
    auto y = weight.product(x);
    const auto in = x.size(1), out = y.size(1);
    const Frequencies at(spectrum.places, in);
    const auto scaled = floats(numbers, spectrum.factor / static_cast<double>(in));
    const auto forward = terms(scaled.const_data_ptr<float>(), at.out, at.in, in, out);
    for_tokens(x.size(0), [&](std::int64_t begin, std::int64_t count) {
      y.narrow(0, begin, count).add_(signals(transforms(x.narrow(0, begin, count)), forward, out));
    });
    variable_list saved{weight.tensor(), numbers};
    nn::keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    nn::save_weight(ctx, weight);
    ctx->saved_data["places"] = spectrum.places;
    ctx->saved_data["factor"] = spectrum.factor;
    ctx->saved_data["bias"] = bias.has_value();
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous();
    const auto x = nn::kept_input(ctx, saved, 2);
    const auto in = x.size(1), out = g.size(1);
    const double factor = ctx->saved_data["factor"].toDouble();
    const Frequencies at(ctx->saved_data["places"].toTensor(), in);
    const auto scaled = floats(saved[1], factor / static_cast<double>(out));
    const auto back = terms(scaled.const_data_ptr<float>(), at.in, at.out, out, in);
    const auto of_numbers = pairs(at, in, out);
    at::Tensor gx, gn, gb;
    if (ctx->needs_input_grad(0)) gx = nn::saved_weight(ctx, saved[0]).transposed_product(g);
    if (ctx->needs_input_grad(1)) gn = at::zeros(saved[1].sizes(), g.options().dtype(at::kFloat));
    for_tokens(g.size(0), [&](std::int64_t begin, std::int64_t count) {
      const auto f = transforms(g.narrow(0, begin, count));
      if (gx.defined()) gx.narrow(0, begin, count).add_(signals(f, back, in));
      if (gn.defined())
        add_products(transforms(x.narrow(0, begin, count)), f, of_numbers, gn.mutable_data_ptr<float>());
    });
    if (gn.defined()) gn = gn.mul_(factor / static_cast<double>(in * out)).to(saved[1].scalar_type());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = nn::column_sums(g);
    return {gx, gn, gb, at::Tensor(), at::Tensor()};
  }

 private:
  /// ifft2 divides by both sides' lengths, of which irfft divides by the result's: the other's is in `factor`.
  static at::Tensor floats(const at::Tensor& numbers, double factor) {
    return (numbers.detach().to(at::kFloat) * factor).contiguous();
  }
};

}  // namespace

at::Tensor spectral_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias,
                            const at::Tensor& numbers, const Spectrum& spectrum) {
  return nn::over_rows(x, [&](const at::Tensor& rows) {
    return SpectralProduct::apply(rows, numbers, nn::optional(bias), weight, spectrum);
  });
}

}  // namespace tessera::peft
