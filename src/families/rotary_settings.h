#pragma once
// Rotary frequencies and their scalings for longer contexts, as config.json names them (rope_theta, rope_scaling).
#include <cstdint>
#include <vector>

#include "base/layer_kinds.h"
#include "families/config_reader.h"

namespace tessera::families {

enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RotarySettings {
  std::int64_t dims = 0;  // of a head that turn
  RotaryPairs pairs = RotaryPairs::kHalves;
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  std::int64_t max_positions = 0, original_positions = 0;
  double low_frequency = 1.0, high_frequency = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;          // yarn
  bool truncate = true;                              // yarn
  std::vector<double> short_factors, long_factors;   // longrope
  double table_factor = 1.0;                         // of cos and sin (yarn, longrope)
};

/// rope_theta and rope_scaling ("rope_type" or "type"). ConfigError for an unknown type (lists the known) or a missing
/// factor.
RotarySettings parse_rotary(const nlohmann::json& json, const ConfigReader& in, std::int64_t dims,
                            std::int64_t max_positions);

}  // namespace tessera::families
