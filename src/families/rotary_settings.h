#pragma once
// Rotary frequencies and their scalings for longer contexts, as config.json names them: rope_theta and
// rope_scaling, or both in rope_parameters (transformers 5).
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
  bool operator==(const RotarySettings&) const = default;
};

/// Where a family keeps what, and its defaults.
struct RotaryKeys {
  double theta = 10000.0;
  const char* theta_key = "rope_theta";
  const char* part_key = "partial_rotary_factor";  // of a head that turns
  double part = 1.0;
  enum class Part { kAll, kAny } parts = Part::kAll;  // what the family's code can turn
  enum class Names { kUsual, kPhi3 } names = Names::kUsual;
  /// Of a family whose types of layers ("full_attention", "sliding_attention") have positions of their own: whose they
  /// are. rope_scaling belongs to the full ones.
  const char* layer_type = nullptr;
};

/// Scalings are named "rope_type" or "type". ConfigError for an unknown type (lists the known), a missing factor, or
/// layers of which each type has other positions.
RotarySettings parse_rotary(const ConfigReader& in, std::int64_t head_dim, std::int64_t max_positions,
                            const RotaryKeys& keys = {});

}  // namespace tessera::families
