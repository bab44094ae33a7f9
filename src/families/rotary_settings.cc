#include "families/rotary_settings.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/nearest.h"

namespace tessera::families {
namespace {

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

}  // namespace tessera::families
