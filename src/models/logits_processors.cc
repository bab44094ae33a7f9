#include "models/logits_processors.h"

#include <ATen/ops/log_softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using Ids = std::vector<std::int64_t>;

/// The scores of one row.
struct Row {
  float* scores;
  std::int64_t classes;

  bool has(std::int64_t token) const { return token >= 0 && token < classes; }
  /// Of a token that the model does not have: nothing, as in transformers.
  void remove(std::int64_t token) const {
    if (has(token)) scores[token] = kRemoved;
  }
};

// Keskar et al. 2019; every token that occurred is penalised once.
void penalise_repetition(Row row, const std::int64_t* ids, std::int64_t length, float penalty) {
  for (std::int64_t token : std::set<std::int64_t>(ids, ids + length)) {
    if (!row.has(token)) continue;
    float& score = row.scores[token];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

void remove_repeated_ngrams(Row row, const std::int64_t* ids, std::int64_t length, std::int64_t n) {
  if (length + 1 < n) return;
  const std::int64_t* prefix = ids + length - (n - 1);
  for (std::int64_t i = 0; i + n <= length; ++i) {
    if (std::equal(prefix, prefix + n - 1, ids + i)) row.remove(ids[i + n - 1]);
  }
}

bool is_end(std::int64_t token, const GenerationConfig& config) {
  return std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), token) != config.eos_token_ids.end();
}

void remove_bad_words(Row row, const std::int64_t* ids, std::int64_t length, const GenerationConfig& config) {
  for (const auto& word : config.bad_words_ids) {
    const auto n = static_cast<std::int64_t>(word.size());
    if (n == 0 || n > length || (n == 1 && is_end(word[0], config))) continue;
    if (std::equal(word.begin(), word.end() - 1, ids + length - (n - 1))) row.remove(word.back());
  }
}

void force(Row row, const Ids& tokens, const char* key) {
  std::fill(row.scores, row.scores + row.classes, kRemoved);
  for (const auto token : tokens) {
    if (!row.has(token))
      throw ConfigError(
          fmt::format("generation: {} is {}; the model has the tokens 0 to {}", key, token, row.classes - 1), key);
    row.scores[token] = 0;
  }
}

void decay_length(Row row, std::int64_t length, std::int64_t prompt_length, const GenerationConfig& config) {
  const auto [start, factor] = *config.exponential_decay_length_penalty;
  const std::int64_t over = length - (start + prompt_length);
  if (over <= 0) return;
  const auto growth = static_cast<float>(std::pow(factor, static_cast<double>(over)) - 1.0);
  const std::set<std::int64_t> ends(config.eos_token_ids.begin(), config.eos_token_ids.end());  // each grows once
  // An end that is not allowed yet stays so; transformers adds infinity to -infinity there.
  for (auto eos : ends)
    if (row.has(eos) && row.scores[eos] != kRemoved) row.scores[eos] += std::abs(row.scores[eos]) * growth;
}

void suppress(Row row, const Ids& tokens) {
  for (auto token : tokens) row.remove(token);
}

void process_row(Row row, const std::int64_t* ids, const Progress& progress, const GenerationConfig& config) {
  std::int64_t padding = 0;
  while (padding < progress.prompt_length && ids[padding] < 0) ++padding;
  ids += padding;
  const std::int64_t length = progress.ids.size(1) - padding, prompt = progress.prompt_length - padding;
  if (config.repetition_penalty != 1.0)
    penalise_repetition(row, ids, length, static_cast<float>(config.repetition_penalty));
  if (config.no_repeat_ngram_size > 0) remove_repeated_ngrams(row, ids, length, config.no_repeat_ngram_size);
  remove_bad_words(row, ids, length, config);
  if (length < (config.min_new_tokens ? prompt + *config.min_new_tokens : config.min_length))
    suppress(row, config.eos_token_ids);
  if (config.forced_bos_token_id && length == 1) force(row, {*config.forced_bos_token_id}, "forced_bos_token_id");
  if (!config.forced_eos_token_ids.empty() && length == progress.max_length - padding - 1)
    force(row, config.forced_eos_token_ids, "forced_eos_token_id");
  if (config.exponential_decay_length_penalty) decay_length(row, length, prompt, config);
  suppress(row, config.suppress_tokens);
  const std::int64_t begin = prompt > 1 || !config.forced_bos_token_id ? prompt : prompt + 1;
  if (length == begin) suppress(row, config.begin_suppress_tokens);
}

}  // namespace

void process_scores(at::Tensor scores, const Progress& progress, const GenerationConfig& config) {
  const std::int64_t rows = scores.size(0), classes = scores.size(1), length = progress.ids.size(1);
  auto* data = scores.mutable_data_ptr<float>();
  const auto kept = progress.ids.contiguous();
  const auto* tokens = kept.const_data_ptr<std::int64_t>();
  for (std::int64_t r = 0; r < rows; ++r)
    process_row({data + r * classes, classes}, tokens + r * length, progress, config);
  if (config.renormalize_logits && !config.do_sample) scores.copy_(at::log_softmax(scores, -1));
}

}  // namespace tessera::models
