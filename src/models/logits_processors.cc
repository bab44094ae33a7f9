#include "models/logits_processors.h"

#include <algorithm>
#include <limits>
#include <set>

namespace tessera::models {
namespace {

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// Keskar et al. 2019; every token that occurred is penalised once.
void penalise_repetition(float* row, const std::int64_t* ids, std::int64_t length, float penalty) {
  for (std::int64_t token : std::set<std::int64_t>(ids, ids + length)) {
    row[token] = row[token] < 0 ? row[token] * penalty : row[token] / penalty;
  }
}

void remove_repeated_ngrams(float* row, const std::int64_t* ids, std::int64_t length, std::int64_t n) {
  if (length + 1 < n) return;
  const std::int64_t* prefix = ids + length - (n - 1);
  for (std::int64_t i = 0; i + n <= length; ++i) {
    if (std::equal(prefix, prefix + n - 1, ids + i)) row[ids[i + n - 1]] = kRemoved;
  }
}

}  // namespace

void process_scores(at::Tensor scores, const at::Tensor& ids, const GenerationConfig& config) {
  const std::int64_t rows = scores.size(0), classes = scores.size(1), length = ids.size(1);
  auto* data = scores.mutable_data_ptr<float>();
  const auto kept = ids.contiguous();
  const auto* tokens = kept.const_data_ptr<std::int64_t>();
  const bool too_short = length < config.min_length || length - 1 < config.min_new_tokens;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = data + r * classes;
    const auto* row_ids = tokens + r * length;
    if (config.repetition_penalty != 1.0) {
      penalise_repetition(row, row_ids, length, static_cast<float>(config.repetition_penalty));
    }
    if (config.no_repeat_ngram_size > 0) remove_repeated_ngrams(row, row_ids, length, config.no_repeat_ngram_size);
    for (auto eos : config.eos_token_ids) {
      if (too_short) row[eos] = kRemoved;
    }
  }
}

}  // namespace tessera::models
