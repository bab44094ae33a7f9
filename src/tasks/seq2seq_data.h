#pragma once
// The rows of a sequence-to-sequence job, and their evaluation.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/collate.h"
#include "models/model.h"
#include "tasks/pair_training.h"
#include "tasks/seq2seq.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

struct Seq2SeqData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<data::TextPair> train_rows, validation_rows;
  data::TokenizedPairs train, validation;
  data::CollateOptions collate;
  std::vector<std::string> notes;
};

/// Reads, splits and tokenizes.
Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& options, const std::string& tokenizer_path);

struct Evaluation {
  double loss = 0;                               // token mean
  double accuracy = 0;                           // percent of rows whose predicted text equals the label
  std::vector<std::string> predictions, labels;  // in the order of the rows, the same on every rank
  double seconds = 0;
};

/// Collective. Teacher-forced: the most probable token at each position, given the label's own tokens before it.
Evaluation evaluate(models::Model& model, const Seq2SeqData& data, const EvaluationOptions& options,
                    comm::Communicator& group, const std::function<void()>& on_batch);

}  // namespace tessera::tasks
