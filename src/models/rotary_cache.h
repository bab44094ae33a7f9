#pragma once
// Tables of rotary frequencies with their scalings for longer contexts.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "families/rotary_settings.h"
#include "nn/ops/rotary.h"
#include "nn/ops/sequence_rows.h"

namespace tessera::models {

/// [dims / 2] float32, for rows that are `length` positions long (dynamic and longrope depend on it).
at::Tensor rotary_frequencies(const families::RotarySettings& settings, std::int64_t length);

/// Tables of cosines and sines, made once and grown as rows get longer. Not thread-safe: one for each model.
class RotaryCache {
 public:
  explicit RotaryCache(families::RotarySettings settings) : settings_(std::move(settings)) {}
  /// positions: [T] int64, below `length`, the longest row with its padding, which dynamic scaling and LongRoPE go by.
  /// With documents (rows of a packed batch) LongRoPE goes by the length of each; dynamic scaling by the longest so
  /// far, from the last one on that was below max_positions (transformers' module, called document by document).
  nn::RotaryTable table(const at::Tensor& positions, std::int64_t length, const nn::SequenceRows* documents = nullptr);

 private:
  void make(std::int64_t rows, std::int64_t length, at::Device device);
  nn::RotaryTable dynamic_table(const at::Tensor& positions, const nn::SequenceRows& documents) const;
  at::Tensor long_rope_rows(const at::Tensor& positions, std::int64_t length, const nn::SequenceRows* documents) const;
  families::RotarySettings settings_;
  std::int64_t rows_ = 0, made_for_ = 0;  // positions in the table; length that the frequencies were made for
  at::Tensor cos_, sin_;                  // LongRoPE: `rows_` with short factors, then as many with long ones
};

}  // namespace tessera::models
