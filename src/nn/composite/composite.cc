#include "nn/composite/composite.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "nn/ops/dropout_ops.h"
#include "nn/ops/recompute.h"
#include "tensor/device.h"

namespace tessera::nn::composite {
namespace {

/// x [T, ..., D] with its first elements turned; cos, sin: [T, 1 ..., R / 2].
at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, RotaryPairs pairs) {
  const std::int64_t half = cos.size(-1), rest = x.size(-1) - 2 * half;
  const auto part = x.narrow(-1, 0, 2 * half).to(at::kFloat);
  at::Tensor y;
  if (pairs == RotaryPairs::kHalves) {
    const auto a = part.narrow(-1, 0, half), b = part.narrow(-1, half, half);
    y = at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
  } else {
    const auto two = part.unflatten(-1, {half, 2});
    const auto a = two.select(-1, 0), b = two.select(-1, 1);
    y = at::stack({a * cos - b * sin, b * cos + a * sin}, -1).flatten(-2);
  }
  y = y.to(x.scalar_type());
  return rest > 0 ? at::cat({y, x.narrow(-1, 2 * half, rest)}, -1) : y;
}

/// tensor::random_bits() of [rows, 1] keys and [n] indices, as numbers of 64 bits.
at::Tensor random_bits(const at::Tensor& a, const at::Tensor& b, const at::Tensor& index) {
  constexpr std::int64_t kLow = 0xFFFFFFFF;  // what 32 bits keep; a product that overflows keeps its low bits, too
  auto x = (index * 0x9E3779B9).bitwise_and(kLow) + a;
  const auto fold = [&](int shift) { x.bitwise_xor_(x.bitwise_right_shift(shift)); };
  const auto times = [&](std::int64_t factor) { x.mul_(factor).bitwise_and_(kLow); };
  x.bitwise_and_(kLow);
  fold(16);
  times(0x7FEB352D);
  fold(15);
  x.add_(b).bitwise_and_(kLow);
  times(0x846CA68B);
  fold(16);
  times(0xC2B2AE35);
  fold(15);
  return x;
}

/// Which elements of x a mask keeps: bool, like x, made where x lies with the CPU's bits.
at::Tensor kept(const at::Tensor& x, const DropoutMask& mask) {
  const at::NoGradGuard no_grad;
  const auto rows = mask_rows(x), n = rows == 0 ? 0 : x.numel() / rows;
  const auto of_rows = mask.row_keys(rows, x).to(at::kLong).bitwise_and_(0xFFFFFFFF);
  const auto draw = mask.draw();
  const auto with = [&](std::int64_t column, std::uint32_t own) {
    return of_rows.select(1, column).bitwise_xor(static_cast<std::int64_t>(own)).view({rows, 1});
  };
  const auto keys = at::stack({with(0, draw.key.a), with(1, draw.key.b)});
  const auto index = at::arange(n, keys.options());
  const auto result = at::empty({rows, n}, x.options().dtype(at::kBool));
  const auto step = std::max<std::int64_t>(1, (1 << 24) / std::max<std::int64_t>(n, 1));  // bits take 8 bytes each
  const std::int64_t threshold = draw.threshold;
  for (std::int64_t r = 0; r < rows; r += step) {
    const auto part = keys.narrow(1, r, std::min(step, rows - r));
    result.narrow(0, r, part.size(1)).copy_(random_bits(part[0], part[1], index).ge(threshold));
  }
  return result.view(x.sizes());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  const auto normed = [eps, offset](const at::Tensor& x, const at::Tensor& weight) {
    // Keeps x and one number a row where the device has such a kernel.
    if (offset == 0 && weight.scalar_type() == x.scalar_type()) return at::rms_norm(x, {x.size(-1)}, weight, eps);
    const bool narrow = weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf;
    const auto dtype = narrow ? weight.scalar_type() : at::result_type(x, weight);
    const auto wide = x.to(at::kFloat);
    const auto scale = weight.to(at::kFloat) + offset;
    return (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps) * scale).to(dtype);
  };
  const auto y = normed(x, weight);
  if (at::GradMode::is_enabled() && x.is_contiguous())  // the weight may be elsewhere by then
    set_recipe(y, {x}, [normed, kept = weight.detach().clone()](const auto& s) { return normed(s[0], kept); });
  return y;
}

at::Tensor rotated(const at::Tensor& x, const RotaryTable& table, double direction) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes.front() = x.size(0);
  sizes.back() = table.cos.size(1);
  const auto row = [&](const at::Tensor& t) { return t.index_select(0, table.positions).view(sizes); };
  return turned(x, row(table.cos), row(table.sin) * direction, table.pairs).contiguous();
}

at::Tensor masked(const at::Tensor& x, const DropoutMask& mask, const at::Tensor& base) {
  const at::NoGradGuard no_grad;
  const auto y = x.to(at::kFloat) * kept(x, mask) * mask.scale();
  return (base.defined() ? base.to(at::kFloat) + y : y).to(x.scalar_type());
}

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, std::int64_t padding_idx) {
  return at::embedding(table, tensor::beside(ids, table), std::max<std::int64_t>(padding_idx, -1));
}

}  // namespace tessera::nn::composite
