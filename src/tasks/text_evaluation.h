#pragma once
// Evaluation of an encoder-decoder model by the texts that it writes, beside its loss.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/options.h"
#include "models/generation.h"
#include "tasks/pair_training.h"
#include "tasks/rouge.h"
#include "text/tokenizer.h"
#include "train/presentation.h"

namespace tessera::tasks {

/// Rows, and how they are padded.
struct PairSet {
  data::TokenizedPairs rows;
  data::CollateOptions collate;
};

/// What generated texts are measured by: run_summarization.py's, run_translation.py's. kAuto: what the flags say of the
/// rows decides between them.
enum class TextMetric { kAuto, kRouge, kBleu };

/// Seq2SeqTrainingArguments' of what evaluations generate.
struct GenerateFlags {
  bool predict_with_generate = false;
  TextMetric metric = TextMetric::kRouge;
  std::optional<std::int64_t> max_length, num_beams;  // max_length: with the token that the decoder begins with
};
void add_generate_flags(config::OptionTable& table, GenerateFlags& flags, const char* group);
void check_generate_flags(const GenerateFlags& flags, config::Problems& problems);

struct TextGeneration {
  models::GenerationConfig settings;
  TextMetric metric = TextMetric::kRouge;
};

/// nullopt: evaluations do not generate. The folder's generation_config.json with what the flags say of it, and without
/// sampling. max_length: where no flag says it.
std::optional<TextGeneration> evaluation_generates(const GenerateFlags& flags, const std::string& folder,
                                                   const models::ModelConfig& model, std::int64_t max_length);

struct TextEvaluation {
  double loss = 0;                               // token mean
  double accuracy = 0;                           // percent of rows whose predicted text equals the label
  std::vector<std::string> predictions, labels;  // in the order of the rows, the same on every rank
  std::optional<Rouge> rouge;                    // of generated texts: one of the two
  std::optional<double> bleu;                    // percent
  double generated_tokens = 0;                   // mean of those that are no padding, with the end token
  double seconds = 0;
  std::int64_t batches = 0;

  /// prefix: "eval", "predict".
  train::Metrics metrics(const std::string& prefix) const;
};

/// Collective. The predicted text: what is generated; without `generation` teacher-forced, the most probable token at
/// each position, given the label's own tokens before it. The same on any number of ranks.
TextEvaluation evaluate_texts(models::Model& model, const PairSet& set, const text::Tokenizer& tokenizer,
                              const EvaluationOptions& options, const std::optional<TextGeneration>& generation,
                              comm::Communicator& group, const std::function<void()>& on_batch);

/// The names of what metrics("eval") gives.
std::vector<std::string> text_metrics(const GenerateFlags& flags);

}  // namespace tessera::tasks
