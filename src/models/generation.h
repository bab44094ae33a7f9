#pragma once
// Greedy and beam search (transformers' generate() without sampling), with a key/value cache. Works on a sharded model
// too: it only calls the model. Collective there: every rank must decode the same number of steps, so pass the same
// batch on every rank.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace tessera::models {

struct GenerationConfig {
  std::int64_t max_new_tokens = 0;  // 0: from max_length
  std::int64_t max_length = 20;     // with the start token; unused when max_new_tokens is given
  std::int64_t min_new_tokens = 0, min_length = 0;
  std::int64_t num_beams = 1, num_return_sequences = 1;
  double length_penalty = 1.0, repetition_penalty = 1.0;
  std::int64_t no_repeat_ngram_size = 0;
  enum class EarlyStopping { kFalse, kTrue, kNever } early_stopping = EarlyStopping::kFalse;
  std::vector<std::int64_t> eos_token_ids = {1};
  std::int64_t pad_token_id = 0, decoder_start_token_id = 0;
};

/// Token ids from the model's config, then generation_config.json of the folder where there is one. ConfigError for
/// options that would sample (do_sample) or that are not known here and change the result.
GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model);

struct GenerationOutput {
  at::Tensor sequences;            // [B * num_return_sequences, L] int64, padded
  at::Tensor sequences_scores;     // [B * num_return_sequences] float32, beam search only
  std::vector<at::Tensor> scores;  // processed scores of each step, [rows, V]; greedy only, when asked for
};

/// input_ids, attention_mask: [B, S]. Runs in eval mode and without grad, and puts the mode back.
GenerationOutput generate(Model& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
                          const GenerationConfig& config, bool want_scores = false);

}  // namespace tessera::models
