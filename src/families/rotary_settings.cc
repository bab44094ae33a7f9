#include "families/rotary_settings.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/json_text.h"
#include "base/nearest.h"

namespace tessera::families {
namespace {

constexpr const char* kNewerKey = "rope_parameters";

double ratio_of_positions(const RotarySettings& r) {
  return static_cast<double>(r.max_positions) / static_cast<double>(r.original_positions);
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

/// As Python's `value or fallback`.
template <class T>
T get_or(const ConfigReader& in, const char* key, T fallback) {
  const auto value = in.get<T>(key, fallback);
  return value == T{0} ? fallback : value;
}

void parse_yarn(const ConfigReader& in, RotarySettings& r) {
  r.beta_fast = get_or(in, "beta_fast", 32.0);
  r.beta_slow = get_or(in, "beta_slow", 1.0);
  r.truncate = in.get<bool>("truncate", true);
  const double mscale = in.get<double>("mscale", 0.0), all = in.get<double>("mscale_all_dim", 0.0);
  const double inferred =
      mscale != 0 && all != 0 ? yarn_mscale(r.factor, mscale) / yarn_mscale(r.factor, all) : yarn_mscale(r.factor, 1.0);
  r.table_factor = in.get<double>("attention_factor", inferred);
}

void parse_longrope(const ConfigReader& in, const std::string& where, RotarySettings& r) {
  r.short_factors = in.get<std::vector<double>>("short_factor", {});
  r.long_factors = in.get<std::vector<double>>("long_factor", {});
  for (const auto* factors : {&r.short_factors, &r.long_factors}) {
    if (static_cast<std::int64_t>(factors->size()) != r.dims / 2) {
      throw ConfigError(in.file() + ": " + where + " needs short_factor and long_factor of " +
                            std::to_string(r.dims / 2) + " numbers, found " + std::to_string(factors->size()),
                        where);
    }
  }
  const double given = in.get<double>("factor", 1.0);
  const bool counts = r.original_positions <= 0 || (where == kNewerKey && in.has("factor"));
  r.factor = counts ? given : ratio_of_positions(r);
  if (r.original_positions == 0) r.original_positions = r.max_positions;
  const double inferred =
      r.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_positions)));
  r.table_factor = in.get<double>("attention_factor", inferred);
}

double required(const ConfigReader& in, const std::string& where, const char* key) {
  if (!in.has(key)) throw ConfigError(in.file() + ": " + where + " lacks '" + key + "'", where);
  return in.get<double>(key, 0.0);
}

RopeScaling scaling_of(const ConfigReader& in, const std::string& where, RotaryKeys::Names family) {
  static const std::vector<std::pair<std::string, RopeScaling>> kKnown = {
      {"default", RopeScaling::kNone},  {"linear", RopeScaling::kLinear}, {"dynamic", RopeScaling::kDynamic},
      {"llama3", RopeScaling::kLlama3}, {"yarn", RopeScaling::kYarn},     {"longrope", RopeScaling::kLongRope},
      {"su", RopeScaling::kLongRope}};
  const auto older = in.get<std::string>("type", "default"), name = in.get<std::string>("rope_type", older);
  if (in.has("type") && name != older)
    throw ConfigError(in.file() + ": " + where + " has two types, rope_type '" + name + "' and type '" + older +
                          "', of which each family takes another one; leave one out",
                      where);
  if (family == RotaryKeys::Names::kPhi3 && name == "yarn") return RopeScaling::kLongRope;  // as early files call it
  std::vector<std::string> names;
  for (const auto& [known, kind] : kKnown) {
    if (name == known) return kind;
    names.push_back(known);
  }
  throw ConfigError(in.file() + ": " + where + " of type '" + name +
                        "' is not known (default, linear, dynamic, llama3, yarn, longrope)" + did_you_mean(name, names),
                    where);
}

/// By layer type: {"full_attention": {...}, "sliding_attention": {...}}.
bool is_by_layer(const nlohmann::json& value) {
  return std::all_of(value.begin(), value.end(), [](const auto& item) { return item.is_object() || item.is_null(); });
}

struct Parameters {
  nlohmann::json object;  // null: none are given
  std::string where;      // the key that they stand under
};

const nlohmann::json& object_at(const ConfigReader& in, const char* key) {
  const auto& value = in.at(key);
  if (!value.is_object())
    throw ConfigError(in.file() + ": " + key + " must be an object, found " + json_text(value), key);
  return value;
}

/// rope_scaling wins, as upstream.
Parameters parameters_of(const ConfigReader& in) {
  Parameters found;
  for (const char* key : {kNewerKey, "rope_scaling"}) {
    if (!in.has(key)) continue;
    const auto& value = object_at(in, key);
    if (!value.empty()) found = {value, key};
  }
  if (found.object.is_null() || !is_by_layer(found.object)) return found;
  const auto by_layer = std::exchange(found.object, nullptr);
  for (const auto& [type, value] : by_layer.items()) {
    if (value.is_null()) continue;
    if (!found.object.is_null() && found.object != value)
      throw ConfigError(in.file() + ": " + found.where + " gives each type of layer other positions, which this " +
                            "family's code does not have: " + json_text(by_layer),
                        found.where);
    found.object = value;
  }
  return found;
}

/// Those of one type of layer; what rope_scaling says of the full ones is added to what rope_parameters does.
Parameters parameters_of_layers(const ConfigReader& in, const std::string& type) {
  Parameters found;
  if (in.has(kNewerKey)) {
    const auto& by_layer = object_at(in, kNewerKey);
    if (const auto own = by_layer.find(type); own != by_layer.end() && !own->is_null()) {
      if (!own->is_object())
        throw ConfigError(in.file() + ": " + kNewerKey + "." + type + " must be an object, found " + json_text(*own),
                          kNewerKey);
      found = {*own, kNewerKey};
    }
  }
  if (in.has("rope_scaling") && type == "full_attention") {
    const auto& scaling = object_at(in, "rope_scaling");
    if (found.object.is_null()) found = {nlohmann::json::object(), "rope_scaling"};
    found.object.update(scaling);
  }
  return found;
}

void parse_scaling(const ConfigReader& in, const ConfigReader& s, const std::string& where, const RotaryKeys& keys,
                   RotarySettings& r) {
  r.scaling = scaling_of(s, where, keys.names);
  const auto outside =
      in.get<std::int64_t>("original_max_position_embeddings", keys.names == RotaryKeys::Names::kPhi3 ? 4096 : 0);
  if (r.scaling == RopeScaling::kNone) return;
  r.original_positions = get_or(s, "original_max_position_embeddings", r.max_positions);
  const bool reads_it = r.scaling != RopeScaling::kLinear && r.scaling != RopeScaling::kDynamic;
  if (where == kNewerKey && reads_it && outside > 0) r.original_positions = outside;  // as transformers 5
  switch (r.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
    case RopeScaling::kDynamic:
      r.factor = required(s, where, "factor");
      break;
    case RopeScaling::kLlama3:
      r.factor = required(s, where, "factor");
      r.low_frequency = required(s, where, "low_freq_factor");
      r.high_frequency = required(s, where, "high_freq_factor");
      break;
    case RopeScaling::kYarn:
      r.factor = where == kNewerKey && !s.has("factor") ? ratio_of_positions(r) : required(s, where, "factor");
      parse_yarn(s, r);
      break;
    case RopeScaling::kLongRope:
      if (where != kNewerKey) r.original_positions = outside;
      parse_longrope(s, where, r);
      break;
  }
}

}  // namespace

RotarySettings parse_rotary(const ConfigReader& in, std::int64_t head_dim, std::int64_t max_positions,
                            const RotaryKeys& keys) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const auto [object, where] = keys.layer_type ? parameters_of_layers(in, keys.layer_type) : parameters_of(in);
  const ConfigReader given(object.is_null() ? kNone : object, in.file());
  // In rope_scaling, which version 5 does not write, version 4 reads neither of these.
  const ConfigReader also(where == kNewerKey ? given.json() : kNone, in.file());
  const double part = also.get<double>("partial_rotary_factor", in.get<double>(keys.part_key, keys.part));
  if (keys.parts == RotaryKeys::Part::kAll && part != 1.0)
    throw ConfigError(in.file() + ": 'partial_rotary_factor' other than 1 is not known to this family",
                      "partial_rotary_factor");
  RotarySettings r;
  r.dims = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  if (r.dims <= 0 || r.dims % 2 != 0) {
    throw ConfigError(
        in.file() + ": the rotary part of a head must be even and positive, found " + std::to_string(r.dims),
        "head_dim");
  }
  r.max_positions = max_positions;
  r.theta = also.get<double>("rope_theta", in.get<double>(keys.theta_key, keys.theta));
  if (!object.is_null()) parse_scaling(in, given, where, keys, r);
  return r;
}

}  // namespace tessera::families
