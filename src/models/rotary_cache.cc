#include "models/rotary_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor/device.h"

namespace tessera::models {
namespace {

constexpr double kPi = std::numbers::pi;

// base^(2 i / dims) in float32, as upstream computes it.
at::Tensor wavelength_base(double theta, std::int64_t dims) {
  const auto steps = at::arange(0, dims, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(dims);
  return at::pow(theta, steps);
}

at::Tensor llama3_frequencies(const families::RotarySettings& r, const at::Tensor& plain) {
  const double old = static_cast<double>(r.original_positions);
  const auto length = at::reciprocal(plain) * (2 * kPi);
  const auto slow = at::where(length > old / r.low_frequency, plain / r.factor, plain);
  const auto smooth = (at::reciprocal(length) * old - r.low_frequency) / (r.high_frequency - r.low_frequency);
  const auto between = (1 - smooth) * slow / r.factor + smooth * slow;
  const auto medium =
      length.lt(old / r.high_frequency).logical_not().logical_and(length.gt(old / r.low_frequency).logical_not());
  return at::where(medium, between, slow);
}

at::Tensor yarn_frequencies(const families::RotarySettings& r) {
  const auto base = wavelength_base(r.theta, r.dims);
  const double dims = static_cast<double>(r.dims), old = static_cast<double>(r.original_positions);
  const auto dimension = [&](double rotations) {
    return dims * std::log(old / (rotations * 2 * kPi)) / (2 * std::log(r.theta));
  };
  double low = dimension(r.beta_fast), high = dimension(r.beta_slow);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(r.dims / 2, at::TensorOptions().dtype(at::kFloat)) - low) / (high - low)).clamp(0, 1);
  return at::reciprocal(base * r.factor) * ramp + at::reciprocal(base) * (1 - ramp);
}

}  // namespace

at::Tensor rotary_frequencies(const families::RotarySettings& r, std::int64_t length) {
  switch (r.scaling) {
    case families::RopeScaling::kNone:
      break;
    case families::RopeScaling::kLinear:
      return at::reciprocal(wavelength_base(r.theta, r.dims)) / r.factor;
    case families::RopeScaling::kDynamic: {
      const double most = static_cast<double>(r.max_positions), n = std::max(static_cast<double>(length), most);
      const double dims = static_cast<double>(r.dims);
      const double theta = r.theta * std::pow(r.factor * n / most - (r.factor - 1), dims / (dims - 2));
      return at::reciprocal(wavelength_base(theta, r.dims));
    }
    case families::RopeScaling::kLlama3:
      return llama3_frequencies(r, at::reciprocal(wavelength_base(r.theta, r.dims)));
    case families::RopeScaling::kYarn:
      return yarn_frequencies(r);
    case families::RopeScaling::kLongRope: {
      const auto& factors = length > r.original_positions ? r.long_factors : r.short_factors;
      return at::reciprocal(at::tensor(factors, at::TensorOptions().dtype(at::kFloat)) *
                            wavelength_base(r.theta, r.dims));
    }
  }
  return at::reciprocal(wavelength_base(r.theta, r.dims));
}

void RotaryCache::make(std::int64_t rows, std::int64_t length, at::Device device) {
  const auto angles = [&](std::int64_t frequencies_for) {
    return at::arange(rows, at::TensorOptions().dtype(at::kFloat)).unsqueeze(1) *
           rotary_frequencies(settings_, frequencies_for).unsqueeze(0);
  };
  auto all = angles(length);
  if (settings_.scaling == families::RopeScaling::kLongRope)
    all = at::cat({angles(0), angles(settings_.original_positions + 1)});
  cos_ = tensor::to_device(all.cos() * settings_.table_factor, device);
  sin_ = tensor::to_device(all.sin() * settings_.table_factor, device);
  rows_ = rows;
}

at::Tensor RotaryCache::long_rope_rows(const at::Tensor& positions, std::int64_t length,
                                       const nn::SequenceRows* documents) const {
  if (!documents) return length > settings_.original_positions ? positions + rows_ : positions;
  auto out = tensor::on_host(positions).clone();
  for (std::int64_t d = 0; d < documents->count(); ++d) {
    auto part = out.narrow(0, documents->begin[d], documents->length[d]);
    if (part.max().item<std::int64_t>() >= settings_.original_positions) part.add_(rows_);
  }
  return tensor::beside(out, positions);
}

nn::RotaryTable RotaryCache::dynamic_table(const at::Tensor& given, const nn::SequenceRows& documents) const {
  const auto positions = tensor::on_host(given);
  const std::int64_t fewest = settings_.max_positions;
  std::int64_t reached = fewest;
  auto angles = at::empty({positions.size(0), settings_.dims / 2}, at::TensorOptions().dtype(at::kFloat));
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    const auto begin = documents.begin[d], count = documents.length[d];
    const auto part = positions.narrow(0, begin, count);
    const auto length = part.max().item<std::int64_t>() + 1;
    reached = length < fewest ? fewest : std::max(reached, length);
    auto rows = angles.narrow(0, begin, count);
    at::mul_out(rows, part.to(at::kFloat).unsqueeze(1), rotary_frequencies(settings_, reached).unsqueeze(0));
  }
  return {tensor::beside(angles.cos() * settings_.table_factor, given),
          tensor::beside(angles.sin() * settings_.table_factor, given), at::arange(given.size(0), given.options()),
          settings_.pairs};
}

nn::RotaryTable RotaryCache::table(const at::Tensor& positions, std::int64_t length,
                                   const nn::SequenceRows* documents) {
  const bool dynamic = settings_.scaling == families::RopeScaling::kDynamic;
  if (dynamic && documents) return dynamic_table(positions, *documents);
  const std::int64_t wanted = dynamic ? std::max(length, settings_.max_positions) : 0;
  if (rows_ < length || wanted != made_for_ || cos_.device() != positions.device()) {
    make(std::max<std::int64_t>(128, dynamic ? length : 2 * length), length, positions.device());
    made_for_ = wanted;
  }
  const bool longrope = settings_.scaling == families::RopeScaling::kLongRope;
  return {cos_, sin_, longrope ? long_rope_rows(positions, length, documents) : positions, settings_.pairs};
}

}  // namespace tessera::models
