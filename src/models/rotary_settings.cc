#include "models/rotary_settings.h"

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

#include "base/nearest.h"

namespace tessera::models {
namespace {

constexpr double kPi = std::numbers::pi;

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

void parse_yarn(const ConfigReader& in, RotarySettings& r) {
  r.factor = in.get<double>("factor", 1.0);
  r.beta_fast = in.get<double>("beta_fast", 32.0);
  r.beta_slow = in.get<double>("beta_slow", 1.0);
  r.truncate = in.get<bool>("truncate", true);
  const double mscale = in.get<double>("mscale", 0.0), all = in.get<double>("mscale_all_dim", 0.0);
  const double inferred =
      mscale != 0 && all != 0 ? yarn_mscale(r.factor, mscale) / yarn_mscale(r.factor, all) : yarn_mscale(r.factor, 1.0);
  r.table_factor = in.get<double>("attention_factor", inferred);
}

void parse_longrope(const ConfigReader& in, RotarySettings& r) {
  r.short_factors = in.get<std::vector<double>>("short_factor", {});
  r.long_factors = in.get<std::vector<double>>("long_factor", {});
  for (const auto* factors : {&r.short_factors, &r.long_factors}) {
    if (static_cast<std::int64_t>(factors->size()) != r.dims / 2) {
      throw ConfigError(in.file() + ": rope_scaling needs short_factor and long_factor of " +
                            std::to_string(r.dims / 2) + " numbers, found " + std::to_string(factors->size()),
                        "rope_scaling");
    }
  }
  const double ratio = in.get<double>("factor", 1.0);
  r.factor = r.original_positions > 0 ? static_cast<double>(r.max_positions) / static_cast<double>(r.original_positions)
                                      : ratio;
  if (r.original_positions == 0) r.original_positions = r.max_positions;
  const double inferred =
      r.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_positions)));
  r.table_factor = in.get<double>("attention_factor", inferred);
}

double required(const ConfigReader& in, const char* key) {
  if (!in.has(key)) throw ConfigError(in.file() + ": rope_scaling lacks '" + key + "'", "rope_scaling");
  return in.get<double>(key, 0.0);
}

RopeScaling scaling_of(const ConfigReader& in) {
  static const std::vector<std::pair<std::string, RopeScaling>> kKnown = {
      {"default", RopeScaling::kNone},  {"linear", RopeScaling::kLinear}, {"dynamic", RopeScaling::kDynamic},
      {"llama3", RopeScaling::kLlama3}, {"yarn", RopeScaling::kYarn},     {"longrope", RopeScaling::kLongRope},
      {"su", RopeScaling::kLongRope}};
  const auto name = in.get<std::string>("rope_type", in.get<std::string>("type", "default"));
  std::vector<std::string> names;
  for (const auto& [known, kind] : kKnown) {
    if (name == known) return kind;
    names.push_back(known);
  }
  throw ConfigError(in.file() + ": rope_scaling of type '" + name +
                        "' is not known (default, linear, dynamic, llama3, yarn, longrope)" + did_you_mean(name, names),
                    "rope_scaling");
}

// base^(2 i / dims) in float32, as upstream computes it.
at::Tensor wavelength_base(double theta, std::int64_t dims) {
  const auto steps = at::arange(0, dims, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(dims);
  return at::pow(theta, steps);
}

at::Tensor llama3_frequencies(const RotarySettings& r, const at::Tensor& plain) {
  const double old = static_cast<double>(r.original_positions);
  const auto length = at::reciprocal(plain) * (2 * kPi);
  const auto slow = at::where(length > old / r.low_frequency, plain / r.factor, plain);
  const auto smooth = (at::reciprocal(length) * old - r.low_frequency) / (r.high_frequency - r.low_frequency);
  const auto between = (1 - smooth) * slow / r.factor + smooth * slow;
  const auto medium =
      length.lt(old / r.high_frequency).logical_not().logical_and(length.gt(old / r.low_frequency).logical_not());
  return at::where(medium, between, slow);
}

at::Tensor yarn_frequencies(const RotarySettings& r) {
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

RotarySettings parse_rotary(const nlohmann::json& json, const ConfigReader& in, std::int64_t dims,
                            std::int64_t max_positions) {
  if (dims <= 0 || dims % 2 != 0) {
    throw ConfigError(
        in.file() + ": the rotary part of a head must be even and positive, found " + std::to_string(dims), "head_dim");
  }
  RotarySettings r;
  r.dims = dims;
  r.max_positions = max_positions;
  r.theta = in.get<double>("rope_theta", 10000.0);
  if (!in.has("rope_scaling")) return r;
  const auto& scaling = json["rope_scaling"];
  if (!scaling.is_object())
    throw ConfigError(in.file() + ": rope_scaling must be an object, found " + scaling.dump(), "rope_scaling");
  const ConfigReader s(scaling, in.file());
  r.scaling = scaling_of(s);
  r.original_positions = s.get<std::int64_t>("original_max_position_embeddings", max_positions);
  switch (r.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
    case RopeScaling::kDynamic:
      r.factor = required(s, "factor");
      break;
    case RopeScaling::kLlama3:
      r.factor = required(s, "factor");
      r.low_frequency = required(s, "low_freq_factor");
      r.high_frequency = required(s, "high_freq_factor");
      break;
    case RopeScaling::kYarn:
      required(s, "factor");
      parse_yarn(s, r);
      break;
    case RopeScaling::kLongRope:
      r.original_positions = in.get<std::int64_t>("original_max_position_embeddings", 0);
      parse_longrope(s, r);
      break;
  }
  return r;
}

at::Tensor rotary_frequencies(const RotarySettings& r, std::int64_t length) {
  switch (r.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      return at::reciprocal(wavelength_base(r.theta, r.dims)) / r.factor;
    case RopeScaling::kDynamic: {
      const double most = static_cast<double>(r.max_positions), n = std::max(static_cast<double>(length), most);
      const double dims = static_cast<double>(r.dims);
      const double theta = r.theta * std::pow(r.factor * n / most - (r.factor - 1), dims / (dims - 2));
      return at::reciprocal(wavelength_base(theta, r.dims));
    }
    case RopeScaling::kLlama3:
      return llama3_frequencies(r, at::reciprocal(wavelength_base(r.theta, r.dims)));
    case RopeScaling::kYarn:
      return yarn_frequencies(r);
    case RopeScaling::kLongRope: {
      const auto& factors = length > r.original_positions ? r.long_factors : r.short_factors;
      return at::reciprocal(at::tensor(factors, at::TensorOptions().dtype(at::kFloat)) *
                            wavelength_base(r.theta, r.dims));
    }
  }
  return at::reciprocal(wavelength_base(r.theta, r.dims));
}

void RotaryCache::make(std::int64_t rows, std::int64_t length) {
  const auto angles = [&](std::int64_t frequencies_for) {
    return at::arange(rows, at::TensorOptions().dtype(at::kFloat)).unsqueeze(1) *
           rotary_frequencies(settings_, frequencies_for).unsqueeze(0);
  };
  auto all = angles(length);
  if (settings_.scaling == RopeScaling::kLongRope) all = at::cat({angles(0), angles(settings_.original_positions + 1)});
  cos_ = all.cos() * settings_.table_factor;
  sin_ = all.sin() * settings_.table_factor;
  rows_ = rows;
}

at::Tensor RotaryCache::long_rope_rows(const at::Tensor& positions, std::int64_t length,
                                       const nn::SequenceRows* documents) const {
  if (!documents) return length > settings_.original_positions ? positions + rows_ : positions;
  auto out = positions.clone();
  for (std::int64_t d = 0; d < documents->count(); ++d) {
    auto part = out.narrow(0, documents->begin[d], documents->length[d]);
    if (part.max().item<std::int64_t>() >= settings_.original_positions) part.add_(rows_);
  }
  return out;
}

nn::RotaryTable RotaryCache::dynamic_table(const at::Tensor& positions, const nn::SequenceRows& documents) const {
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
  return {angles.cos() * settings_.table_factor, angles.sin() * settings_.table_factor,
          at::arange(positions.size(0), at::TensorOptions().dtype(at::kLong)), settings_.pairs};
}

nn::RotaryTable RotaryCache::table(const at::Tensor& positions, std::int64_t length,
                                   const nn::SequenceRows* documents) {
  const bool dynamic = settings_.scaling == RopeScaling::kDynamic;
  if (dynamic && documents) return dynamic_table(positions, *documents);
  const std::int64_t wanted = dynamic ? std::max(length, settings_.max_positions) : 0;
  if (rows_ < length || wanted != made_for_) {
    make(std::max<std::int64_t>(128, dynamic ? length : 2 * length), length);
    made_for_ = wanted;
  }
  const bool longrope = settings_.scaling == RopeScaling::kLongRope;
  return {cos_, sin_, longrope ? long_rope_rows(positions, length, documents) : positions, settings_.pairs};
}

}  // namespace tessera::models
