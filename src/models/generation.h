#pragma once
// Greedy search, sampling and beam search (transformers' generate()), with a key/value cache. Works on a sharded model
// too: it only calls the model. Collective there: every rank must decode the same number of steps, so pass the same
// batch and seed on every rank, or AnyGoesOn.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "tessera/base/error.h"

namespace tessera::models {

struct GenerationConfig {
  std::int64_t max_new_tokens = 0;  // 0: from max_length
  std::int64_t max_length = 0;      // with the start token or the prompt; unused when max_new_tokens is given
  std::int64_t max_positions = 0;   // of the model, 0: any; ends rows where neither of these is given: 20 new tokens
  std::optional<std::int64_t> min_new_tokens;
  std::int64_t min_length = 0;  // unused when min_new_tokens is given
  std::int64_t num_beams = 1, num_return_sequences = 1;
  double length_penalty = 1.0, repetition_penalty = 1.0;
  std::int64_t no_repeat_ngram_size = 0;
  enum class EarlyStopping { kFalse, kTrue, kNever } early_stopping = EarlyStopping::kFalse;
  std::vector<std::int64_t> eos_token_ids = {1};
  std::int64_t pad_token_id = 0;
  std::vector<std::int64_t> decoder_start_token_ids = {0};  // of every row; several: one for each row of the batch

  std::vector<std::vector<std::int64_t>> bad_words_ids;  // sequences that may not be completed
  std::vector<std::int64_t> suppress_tokens, begin_suppress_tokens;
  std::optional<std::int64_t> forced_bos_token_id;
  std::vector<std::int64_t> forced_eos_token_ids;  // equally likely at the last place; empty: nothing is forced
  /// (start, factor): from `start` new tokens on, the end token's score grows by |score| * (factor^n - 1).
  std::optional<std::pair<std::int64_t, double>> exponential_decay_length_penalty;
  bool renormalize_logits = false;

  bool do_sample = false;  // the rest applies only then
  double temperature = 1.0;
  std::int64_t top_k = 50;  // 0: all
  double top_p = 1.0, typical_p = 1.0;
  std::optional<double> min_p;
  double epsilon_cutoff = 0, eta_cutoff = 0;
  std::int64_t min_tokens_to_keep = 1;  // of each filter
  std::uint64_t seed = 0;               // decides every drawn token, with the step and the row
};

/// Token ids from the model's config, then generation_config.json of the folder where there is one. ConfigError for
/// options that are not known here and change the result.
GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model);

/// The same from one JSON object of generate()'s arguments (file: for messages); keys that it lacks stay as they are.
void read_generation_json(const nlohmann::json& json, const std::string& file, GenerationConfig& config);

/// Tokens that a prompt of so many may become.
std::int64_t most_tokens(const GenerationConfig& config, std::int64_t prompt_tokens);

struct GenerationOutput {
  at::Tensor sequences;            // [B * num_return_sequences, L] int64, padded; causal models: with the prompt
  at::Tensor sequences_scores;     // [B * num_return_sequences] float32, beam search only
  std::vector<at::Tensor> scores;  // processed scores of each step, [rows, V]; not of beam search; only when asked for
};

/// The model's scores hold a NaN or an infinity: no token follows from them.
struct NonFiniteScores : DataError {
  NonFiniteScores(std::int64_t row, std::int64_t step);
  std::int64_t row = 0;   // of input_ids
  std::int64_t step = 0;  // the first new token's is 1
};

/// Called after every step of greedy search or sampling with the new tokens [rows] (padding for rows that have ended).
using TokenCallback = std::function<void(const at::Tensor& tokens)>;

/// Of ranks that share a sharded model and have batches of their own: told after every step whether this rank's rows
/// go on, says whether any rank's do (collective). Until none does all call the model, for they gather its units
/// together; rows that have ended stay as they are.
using AnyGoesOn = std::function<bool(bool mine)>;

/// input_ids, attention_mask: [B, S]; the mask may be undefined. Causal models continue the prompts, which are padded
/// on the left (DataError otherwise). Padding with ids below 0 is no part of a row: repetition penalties and minimum
/// lengths see the prompt alone. Any other id counts there, as in transformers. Runs in eval mode and without grad, and
/// puts the mode back. NonFiniteScores as soon as the model gives such. The results are on the CPU, wherever the model
/// is. any_goes_on: empty where all ranks have the same batch; of encoder-decoder models only, whose rows begin alike.
GenerationOutput generate(Model& model, const at::Tensor& input_ids, const at::Tensor& attention_mask,
                          const GenerationConfig& config, bool want_scores = false, const TokenCallback& on_tokens = {},
                          const AnyGoesOn& any_goes_on = {});

}  // namespace tessera::models
