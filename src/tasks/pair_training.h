#pragma once
// Pairs of texts as the Trainer and evaluations draw them, for every task that trains an encoder-decoder model.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/collate.h"
#include "data/epoch_sampler.h"
#include "models/model.h"
#include "tasks/training_job.h"
#include "tessera/comm/communicator.h"
#include "train/trainer.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

/// Training on shuffled rows, each of them once in an epoch; the last batch may be smaller than the others.
class PairTrainable final : public train::Trainable {
 public:
  /// `model` and `rows` outlive this.
  PairTrainable(models::Model& model, const data::TokenizedPairs& rows, const data::CollateOptions& collate,
                const train::TrainingArguments& arguments, const comm::Communicator& group);
  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t epoch, std::int64_t batch) override;
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 0; }
  std::int64_t rows(std::int64_t batch) const override { return mine_.rows_of_all(batch); }
  std::string find_non_finite(std::int64_t epoch, std::int64_t batch) override;

 private:
  models::Model& model_;
  const data::TokenizedPairs& rows_;
  data::CollateOptions collate_;
  data::EpochSampler mine_, all_;  // this rank's rows; every rank's
};

struct EvaluationOptions {
  std::int64_t per_device_batch = 8, max_batches = 0;  // 0: all
};

std::int64_t evaluation_batches(const data::TokenizedPairs& rows, const EvaluationOptions& options, int world_size);

/// A batch of this rank: the rows' numbers (none where the ranks before have them all), and what came out.
using OnPairBatch = std::function<void(const std::vector<std::int64_t>& rows, const data::PairBatch& batch,
                                       const models::ModelOutput& output)>;

/// Collective. Every row once, in order, without gradients and dropout; the mean loss of all their tokens, the same on
/// every rank. Leaves the model and the random numbers of training as they were.
double evaluate_pairs(models::Model& model, const data::TokenizedPairs& rows, const data::CollateOptions& collate,
                      const EvaluationOptions& options, comm::Communicator& group, const OnPairBatch& on_batch);

/// What only decoders have.
void check_pairs(const JobOptions& options, config::Problems& problems);

/// DataError for a tokenizer whose ids do not fit the model's table of tokens.
void require_ids_below(const data::TokenizedPairs& pairs, std::int64_t vocab_size, const std::string& tokenizer);

}  // namespace tessera::tasks
