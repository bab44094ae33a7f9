#pragma once
// The rows of a fine-tuning job as batches: what the Trainer and the evaluation draw from.
#include <cstdint>
#include <string>
#include <vector>

#include "data/epoch_sampler.h"
#include "data/sft_dataset.h"
#include "models/model.h"
#include "tasks/sft.h"
#include "tasks/training_tokenizer.h"
#include "train/session.h"
#include "train/trainer.h"

namespace tessera::tasks {

/// The tokenised rows of one data set, and what they were made with.
struct SftRows {
  std::string tokenizer_path;
  TrainingTokenizer opened;
  data::SftDataOptions data;
  data::SftSplits splits;
  data::SftCollateOptions collate;

  std::int64_t longest() const;  // tokens of the longest training row
  /// DataError: the model's table has fewer rows than the tokenizer has tokens.
  void check(const models::ModelConfig& model) const;
};

/// Collective. ConfigError where the job evaluates and the data set has one split only.
SftRows load_sft_rows(const SftOptions& options, const std::string& tokenizer_path, comm::Communicator& group,
                      std::vector<std::string>& notes);

/// Forward, the inputs' gradients and the trained weights' gradients of every matrix, 2 operations each; a table that
/// is only looked up costs nothing.
double flops_per_token(models::Model& model);

/// The training job as the Trainer sees it.
class SftTrainable final : public train::Trainable {
 public:
  SftTrainable(models::Model& model, const data::SftDataset& rows, const data::SftCollateOptions& collate,
               const train::TrainingArguments& arguments, comm::Communicator& group);
  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t epoch, std::int64_t batch) override;
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  /// What loss() shows the model.
  models::ModelInput input(std::int64_t epoch, std::int64_t batch, double normalizer);
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t epoch, std::int64_t batch) override;
  std::int64_t rows(std::int64_t batch) const override { return mine_.rows_of_all(batch); }
  std::string find_non_finite(std::int64_t epoch, std::int64_t batch) override;

 private:
  std::vector<std::int64_t> rows_of(data::EpochSampler& sampler, std::int64_t epoch, std::int64_t batch);

  models::Model& model_;
  comm::Communicator& group_;
  const data::SftDataset& rows_;
  data::SftCollateOptions collate_;
  double embedding_noise_;
  data::EpochSampler mine_, all_;  // this rank's rows; every rank's
};

/// The model's input for a batch; the loss is the sum over its labels / normalizer.
models::ModelInput model_input(const data::SftBatch& batch, double normalizer);

/// ModelInput::sum_over_ranks over a group that outlives the input.
std::function<void(at::Tensor)> sum_over(comm::Communicator& group);

/// The names of what evaluate() gives.
std::vector<std::string> evaluation_names(const train::TrainingArguments& arguments);
/// Collective: mean loss over the tokens of all rows, and what goes with it, by the Trainer's names.
train::Metrics evaluate(models::Model& model, const data::SftDataset& rows, const data::SftCollateOptions& collate,
                        const train::TrainingArguments& arguments, comm::Communicator& group,
                        const report::BarStyle& bars, std::ostream& err);

}  // namespace tessera::tasks
