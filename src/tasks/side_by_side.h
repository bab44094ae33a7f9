#pragma once
// `tessera sft --adapters FILE`: several adapters trained in one run on one frozen base. A step takes a batch of each
// adapter's own rows; every layer computes one adapter's rows after another while it is gathered, and each adapter has
// its own loss, clipping, schedule and number of steps. So each comes out as from a run that trains it alone.
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "peft/several/several_adapters.h"
#include "tasks/sft.h"
#include "tasks/sft_training.h"

namespace tessera::tasks {

/// One adapter's rows and steps.
struct AdapterRun {
  std::string name;
  train::TrainerOptions options;
  std::uint64_t seed = 0;
  std::unique_ptr<SftTrainable> rows;
  std::int64_t steps_per_epoch = 0, steps = 0;  // of its own epochs; all
};

/// The batches of all, as the Trainer sees them: an epoch is one of the adapter with the most steps, and every step has
/// gradient_accumulation_steps batches; an adapter with fewer at the end of its epoch is in the last of them.
class SideBySideTrainable final : public train::Trainable {
 public:
  /// All outlive it. The runs accumulate equally many batches.
  SideBySideTrainable(models::Model& model, const peft::SeveralAdapters& adapters, std::vector<AdapterRun>& runs,
                      comm::Communicator& group);
  std::int64_t batches_per_epoch() const override { return longest().steps_per_epoch * accumulation_; }
  double loss_tokens(std::int64_t, std::int64_t) override { return 1; }  // each part has a normalizer of its own
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override;
  void set_training(bool training) override { model_.train(training); }
  std::int64_t input_tokens(std::int64_t epoch, std::int64_t batch) override;
  std::int64_t rows(std::int64_t batch) const override;
  std::string find_non_finite(std::int64_t epoch, std::int64_t batch) override;

  std::int64_t steps() const { return longest().steps; }
  /// Collective, after each step: the mean loss of each adapter that took it, under its name.
  train::Metrics take_losses();

 private:
  /// Which of its own batches an adapter computes.
  struct Place {
    std::int64_t epoch = 0, first = 0, batches = 0;  // of the step
    std::int64_t batch = -1;                         // now; -1: none
  };
  const AdapterRun& longest() const { return runs_[longest_]; }
  Place place_of(const AdapterRun& run, std::int64_t epoch, std::int64_t batch) const;

  models::Model& model_;
  const peft::SeveralAdapters& adapters_;
  std::vector<AdapterRun>& runs_;
  comm::Communicator& group_;
  std::size_t longest_ = 0;
  std::int64_t accumulation_ = 1, epoch_ = 0;
  std::vector<double> losses_;  // of the step so far, on this rank
  std::vector<bool> took_;
};

/// options: with side_by_side. Returns the exit code.
int train_side_by_side(const SftOptions& options, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
