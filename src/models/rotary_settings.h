#pragma once
// Rotary frequencies and their scalings for longer contexts (config.json: rope_theta, rope_scaling).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/config_reader.h"
#include "nn/rotary.h"

namespace tessera::models {

enum class RopeScaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RotarySettings {
  std::int64_t dims = 0;  // of a head that turn
  nn::RotaryPairs pairs = nn::RotaryPairs::kHalves;
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

/// [dims / 2] float32, for rows that are `length` positions long (dynamic and longrope depend on it).
at::Tensor rotary_frequencies(const RotarySettings& settings, std::int64_t length);

/// Tables of cosines and sines, made once and grown as rows get longer. Not thread-safe: one for each model.
class RotaryCache {
 public:
  explicit RotaryCache(RotarySettings settings) : settings_(std::move(settings)) {}
  /// positions: [T] int64.
  nn::RotaryTable table(const at::Tensor& positions);

 private:
  bool depends_on_length() const;
  RotarySettings settings_;
  std::int64_t made_for_ = 0;  // length that the frequencies were made for
  at::Tensor cos_, sin_;
};

}  // namespace tessera::models
