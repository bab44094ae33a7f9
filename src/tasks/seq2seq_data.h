#pragma once
// The rows of a sequence-to-sequence job as batches: what the Trainer and the evaluation draw from.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/collate.h"
#include "data/epoch_sampler.h"
#include "models/model.h"
#include "tasks/seq2seq.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace tessera::tasks {

struct Seq2SeqData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<data::TextPair> train_rows, validation_rows;
  data::TokenizedPairs train, validation;
  data::CollateOptions collate;
  std::vector<std::string> notes;
};

/// Reads, splits and tokenizes. DataError also for a tokenizer whose ids do not fit the model's vocabulary.
Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& options, const std::string& tokenizer_path,
                              std::int64_t vocab_size);

/// The training job as the Trainer sees it.
class Seq2SeqTrainable final : public train::Trainable {
 public:
  Seq2SeqTrainable(models::Model& model, const Seq2SeqData& data, const Seq2SeqOptions& options, int rank,
                   int world_size);
  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t epoch, std::int64_t batch) override;
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 0; }

 private:
  models::Model& model_;
  const Seq2SeqData& data_;
  data::EpochSampler mine_, all_;  // this rank's rows; every rank's
};

struct Evaluation {
  double loss = 0;                               // token mean
  double accuracy = 0;                           // percent of rows whose predicted text equals the label
  std::vector<std::string> predictions, labels;  // in the order of the rows, the same on every rank
  double seconds = 0;
};

/// Collective. Teacher-forced: the most probable token at each position, given the label's own tokens before it.
Evaluation evaluate(models::Model& model, const Seq2SeqData& data, const Seq2SeqOptions& options,
                    comm::Communicator& group, const std::function<void()>& on_batch);
std::int64_t evaluation_batches(const Seq2SeqData& data, const Seq2SeqOptions& options, int world_size);

}  // namespace tessera::tasks
