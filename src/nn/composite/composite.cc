#include "nn/composite/composite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include "nn/ops/dropout_ops.h"
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

/// scaling * dropout(x) A^T B^T in the adapter's dtype.
at::Tensor low_rank(const at::Tensor& x, const LowRank& low) {
  const auto u = at::linear(nn::dropout(x.to(low.a.scalar_type()), low.dropout), low.a);
  return at::linear(u, low.b) * low.scaling;
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  const bool narrow = weight.scalar_type() == at::kBFloat16 || weight.scalar_type() == at::kHalf;
  const auto dtype = narrow ? weight.scalar_type() : at::result_type(x, weight);
  const auto wide = x.to(at::kFloat);
  const auto scale = weight.to(at::kFloat) + offset;
  return (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps) * scale).to(dtype);
}

std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table) {
  const auto turn = [&](const at::Tensor& x) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
    sizes.front() = x.size(0);
    sizes.back() = table.cos.size(1);
    const auto row = [&](const at::Tensor& t) { return t.index_select(0, table.positions).view(sizes); };
    return turned(x, row(table.cos), row(table.sin), table.pairs);
  };
  return {turn(q), turn(k)};
}

at::Tensor dropout(const at::Tensor& x, double p) {
  const DropoutMask mask(p, mask_rows(x));
  const auto factors = at::ones(x.sizes(), at::TensorOptions().dtype(at::kFloat));
  apply_mask(factors, factors, mask);
  return (x.to(at::kFloat) * tensor::beside(factors, x)).to(x.scalar_type());
}

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, std::int64_t padding_idx) {
  return at::embedding(table, tensor::beside(ids, table), std::max<std::int64_t>(padding_idx, -1));
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options) {
  auto logits = at::linear(hidden, weight).to(at::kFloat) * options.scale;
  if (options.softcap > 0) logits = at::tanh(logits / options.softcap) * options.softcap;
  if (options.predictions) *options.predictions = at::argmax(logits.detach(), -1);
  const auto wanted = labels.masked_fill(labels.lt(0), -100);
  const auto sum = sum_token_losses(logits, wanted, options.token_loss);
  return (sum / options.normalizer).to(options.loss_dtype.value_or(hidden.scalar_type()));
}

at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LowRank& low) {
  const auto base = at::linear(x, weight, bias);
  return (base + low_rank(x, low)).to(base.scalar_type());
}

at::Tensor dora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LowRank& low,
                       const at::Tensor& magnitude, const at::Tensor& norms) {
  const auto base = at::linear(x, weight);
  const auto sum = (base + low_rank(x, low)).to(base.scalar_type());
  const auto factor = (magnitude / norms).to(sum.scalar_type());
  return bias.defined() ? at::addcmul(bias, sum, factor) : sum * factor;
}

}  // namespace tessera::nn::composite
