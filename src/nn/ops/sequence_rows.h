#pragma once
// Batches without padding: the tokens of all sequences stand one after another in a [tokens, dim] tensor.
#include <cstdint>
#include <vector>

namespace tessera::nn {

/// Sequence i is rows [begin[i], begin[i] + length[i]).
struct SequenceRows {
  std::vector<std::int64_t> begin, length;

  std::int64_t count() const { return static_cast<std::int64_t>(length.size()); }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (auto n : length) most = n > most ? n : most;
    return most;
  }
  /// `count` sequences of `length` rows, each `stride` rows after the one before.
  static SequenceRows uniform(std::int64_t count, std::int64_t length, std::int64_t stride) {
    SequenceRows rows;
    for (std::int64_t i = 0; i < count; ++i) {
      rows.begin.push_back(i * stride);
      rows.length.push_back(length);
    }
    return rows;
  }
};

}  // namespace tessera::nn
