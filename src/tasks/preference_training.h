#pragma once
// Rows of preference data as batches: what the Trainer, the evaluation and the reference's sweep draw from.
#include <cstdint>
#include <string>
#include <vector>

#include "data/epoch_sampler.h"
#include "tasks/preference_step.h"
#include "train/session.h"
#include "train/trainer.h"

namespace tessera::tasks {

/// One split, and how its batches are made.
struct PreferenceRows {
  const data::PreferenceDataset* rows = nullptr;
  data::PreferenceCollateOptions collate;
  std::int64_t mismatch_group = 1;  // KTO: rows among which completions are exchanged
};

/// Where the reference's log-probabilities come from.
struct ReferencePolicy {
  enum class Source { kNone, kAdapterOff, kPrecomputed } source = Source::kNone;
  ReferenceLogps precomputed = {};  // of all rows of a split: [sides, rows] and [rows]
};

/// The rows of one batch that are this rank's.
PreferencePart make_part(const PreferenceRows& data, const std::vector<std::int64_t>& mine, std::int64_t first,
                         std::int64_t all, const preference::Objective& objective);

/// Collective: the model as it is says the log-probabilities of these rows of the split (ascending; empty: all), the
/// same on every rank; others are 0.
ReferenceLogps precompute(models::Model& model, const PreferenceRows& data, const std::vector<std::int64_t>& rows,
                          std::int64_t per_device_batch, const preference::Objective& objective,
                          comm::Communicator& group, const report::BarStyle& bars, std::ostream& err);

/// The training job as the Trainer sees it. Each batch of all ranks counts alike among those of a step, as in TRL.
class PreferenceTrainable final : public train::Trainable {
 public:
  PreferenceTrainable(models::Model& model, const PreferenceRows& data, const preference::Objective& objective,
                      const ReferencePolicy& reference, const train::TrainingArguments& arguments, bool drops_out,
                      comm::Communicator& group);
  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t, std::int64_t) override { return 1; }
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  void set_training(bool training) override;
  std::int64_t input_tokens(std::int64_t epoch, std::int64_t batch) override;
  std::int64_t rows(std::int64_t batch) const override { return mine_.rows_of_all(batch); }
  std::string find_non_finite(std::int64_t epoch, std::int64_t batch) override;

  /// Metrics of the batches since the last call, the same on every rank.
  std::vector<train::Metrics> take_metrics() { return std::exchange(metrics_, {}); }
  /// Numbers of the rows that the first `batches` batches of the run draw, ascending; empty: all rows.
  std::vector<std::int64_t> rows_drawn(std::int64_t batches);

 private:
  models::Model& model_;
  comm::Communicator& group_;
  const PreferenceRows& data_;
  const preference::Objective& objective_;
  const ReferencePolicy& reference_;
  bool drops_out_;
  double embedding_noise_;
  data::EpochSampler mine_, all_;  // this rank's rows; every rank's
  std::int64_t per_device_;
  std::vector<train::Metrics> metrics_;
};

/// The same rows, batch by batch, for an adapter that begins with what layers see of them. Their loss is none.
class ShownPreferences final : public train::Trainable {
 public:
  ShownPreferences(models::Model& model, const PreferenceRows& data, const preference::Objective& objective,
                   const train::TrainingArguments& arguments, const comm::Communicator& group);
  std::int64_t batches_per_epoch() const override { return mine_.batches_per_epoch(); }
  double loss_tokens(std::int64_t, std::int64_t) override { return 1; }
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 0; }
  std::int64_t rows(std::int64_t batch) const override { return mine_.rows_of_all(batch); }

 private:
  models::Model& model_;
  const PreferenceRows& data_;
  const preference::Objective& objective_;
  data::EpochSampler mine_;
};

/// Collective: TRL's numbers over all rows of a split; those of batches are averaged, the loss over rows.
train::Metrics evaluate_preferences(models::Model& model, const PreferenceRows& data,
                                    const preference::Objective& objective, const ReferencePolicy& reference,
                                    const train::TrainingArguments& arguments, comm::Communicator& group,
                                    const report::BarStyle& bars, std::ostream& err);

}  // namespace tessera::tasks
