#pragma once
// Rotary frequencies and their scalings for longer contexts (config.json: rope_theta, rope_scaling).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/config_reader.h"
#include "nn/rotary.h"
#include "nn/sequence_rows.h"

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
  /// positions: [T] int64, below `length`, the longest row with its padding, which dynamic scaling and LongRoPE go by.
  /// With documents (rows of a packed batch) LongRoPE goes by the length of each; dynamic scaling by the longest so
  /// far, from the last one on that was below max_positions (transformers' module, called document by document).
  nn::RotaryTable table(const at::Tensor& positions, std::int64_t length, const nn::SequenceRows* documents = nullptr);

 private:
  void make(std::int64_t rows, std::int64_t length);
  nn::RotaryTable dynamic_table(const at::Tensor& positions, const nn::SequenceRows& documents) const;
  at::Tensor long_rope_rows(const at::Tensor& positions, std::int64_t length, const nn::SequenceRows* documents) const;
  RotarySettings settings_;
  std::int64_t rows_ = 0, made_for_ = 0;  // positions in the table; length that the frequencies were made for
  at::Tensor cos_, sin_;                  // LongRoPE: `rows_` with short factors, then as many with long ones
};

}  // namespace tessera::models
