// A run of a small model in this thread: what signals, evaluations and others' hands on its files do to it.
#include "train/session.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/run_lock.h"
#include "support/fake_device.h"
#include "support/program.h"
#include "support/small_net.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/tensor/random.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kStepsPerEpoch = 4, kSteps = 8;

/// Draws from libtorch in every step.
class Dropping final : public Trainable {
 public:
  Dropping(::tessera::testing::SmallNet& model, std::function<void(std::int64_t step)> before,
           std::map<std::int64_t, double> factors)
      : model_(model), before_(std::move(before)), factors_(std::move(factors)) {}
  std::int64_t batches_per_epoch() const override { return kStepsPerEpoch; }
  double loss_tokens(std::int64_t, std::int64_t) override { return 1; }
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double) override {
    const std::int64_t step = epoch * kStepsPerEpoch + batch + 1;
    if (before_) before_(step);
    const auto loss =
        at::dropout(model_(::tessera::testing::batch(0, static_cast<int>(step))), 0.3, true).pow(2).mean();
    const auto factor = factors_.find(step);
    return factor == factors_.end() ? loss : loss * factor->second;
  }
  void set_training(bool) override {}
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 1; }
  std::int64_t rows(std::int64_t) const override { return 1; }

 private:
  ::tessera::testing::SmallNet& model_;
  std::function<void(std::int64_t)> before_;
  std::map<std::int64_t, double> factors_;  // of the losses of some steps
};

/// Without what depends on the clock.
json without_times(json row) {
  json out;
  for (const auto& [key, value] : row.items())
    if (key != "time" && key.find("second") == std::string::npos && key.find("runtime") == std::string::npos)
      out[key] = value;
  return out;
}

class Sessions : public ::testing::Test {
 protected:
  TrainingArguments arguments(const std::string& out) const {
    TrainingArguments a;
    a.output_dir = folder_.path() + "/" + out;
    a.max_steps = kSteps;
    a.logging_steps = 1;
    a.save_in_background = false;
    a.save_strategy = Interval::kBest;
    a.eval_strategy = Interval::kSteps;
    a.eval_steps = 2;
    a.metric_for_best_model = "eval_loss";
    a.greater_is_better = false;
    a.disable_tqdm = true;
    return a;
  }

  /// What one rank prints; before: each step.
  std::string run_on(std::shared_ptr<comm::Communicator> group, const TrainingArguments& a,
                     std::function<void(std::int64_t)> before) {
    manual_seed(7);
    ::tessera::testing::SmallNet model;
    if (prepare_) prepare_(model);
    auto sharded = fsdp::fully_shard(model, group, {.wrap = fsdp::wrap_classes({"MlpBlock"})});
    const auto optimizer = make_optimizer(a, model, *sharded);
    Dropping task(model, std::move(before), factors_);
    Trainer trainer(a.trainer_options(), task, *sharded, *optimizer);
    SessionTask session;
    session.evaluate = [&](const report::BarStyle&) {
      (void)at::rand({3});
      if (group->rank() == 0) evaluated_ = at::cat(sharded->parameters()).detach().clone();
      if (trainer.done() <= not_a_number_until_) return Metrics{{"eval_loss", std::nan("")}};
      return Metrics{{"eval_loss", std::abs(static_cast<double>(trainer.done()) - 4) + 0.5}};
    };
    session.checkpoints.save_model = [&](const std::string& folder, checkpoint::SaveQueue& queue) {
      std::vector<std::shared_ptr<const at::Tensor>> slices;
      for (const auto& p : sharded->parameters()) slices.push_back(queue.snapshot(p));
      queue.push([this, folder, slices, rank = group->rank()] {
        write_file_atomically(folder + "/config.json", "{}");
        std::vector<at::Tensor> tensors;
        for (const auto& t : slices) tensors.push_back(*t);
        if (rank == 0) saved_ = at::cat(tensors).detach().clone();
      });
    };
    session.settings = settings_;
    session.memory = memory_;
    session.save_result = save_result_;
    session.device = device_;
    session.flops_per_token = flops_per_token_;
    session.planned_device_bytes = planned_device_bytes_;
    std::ostringstream out, err;
    Session(a, session, {trainer, *sharded, *optimizer}, out, err).run();
    if (group->rank() == 0) weights_ = at::cat(sharded->parameters()).detach().clone();
    return out.str();
  }
  std::string run(const TrainingArguments& a, std::function<void(std::int64_t)> before = nullptr) {
    std::string out;
    comm::run_threads(1, [&](auto group) { out = run_on(group, a, before); });
    return out;
  }

  static std::vector<json> rows(const TrainingArguments& a) {
    std::vector<json> out;
    std::ifstream in(a.output_dir + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(without_times(json::parse(line)));
    return out;
  }

  test::TempFolder folder_{"sessions"};
  at::Device device_ = at::kCPU;  // whose memory is reported
  std::int64_t planned_device_bytes_ = 0;
  double flops_per_token_ = 0;
  report::MemoryWatch* memory_ = nullptr;
  std::function<void()> save_result_;
  nlohmann::ordered_json settings_;                             // for run.json; null: none is written
  std::function<void(::tessera::testing::SmallNet&)> prepare_;  // before sharding
  std::map<std::int64_t, double> factors_;                      // of the losses of some steps
  std::int64_t not_a_number_until_ = -1;                        // step: evaluations
  // Rank 0's slices: at the end of the last run, and at its last save and evaluation.
  at::Tensor weights_, saved_, evaluated_;
};

std::function<void(std::int64_t)> stop_in(std::int64_t step) {
  return [=](std::int64_t now) {
    if (now == step) ::raise(SIGTERM);
  };
}

TEST_F(Sessions, TheLastRowHasThePeakOfADevicesMemory) {
  const auto on_cpu = arguments("cpu"), on_device = arguments("device");
  run(on_cpu);
  EXPECT_FALSE(rows(on_cpu).back().contains("measured_device_mib"));
  EXPECT_FALSE(rows(on_cpu).back().contains("planned_device_mib"));
  device_ = test::fake_device();
  planned_device_bytes_ = 3 << 20;
  {
    const auto gone_by_then = at::empty({5 << 20}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  run(on_device);
  EXPECT_EQ(rows(on_device).back().at("planned_device_mib"), 3);
  EXPECT_GE(rows(on_device).back().at("measured_device_mib").get<double>(), 5);
}

TEST_F(Sessions, TheShareOfTheProcessorsRateIsShownWhereTheProcessorComputes) {
  flops_per_token_ = 1000;
  const auto on_cpu = arguments("cpu"), on_device = arguments("device");
  run(on_cpu);
  EXPECT_TRUE(rows(on_cpu).back().contains("model_flops_utilization"));
  device_ = test::fake_device();
  run(on_device);
  for (const auto& row : rows(on_device)) EXPECT_FALSE(row.contains("model_flops_utilization")) << row;
}

TEST_F(Sessions, TheHtmlPageIsRenewedWhileTheRunGoesOnAndStaysAtItsEnd) {
  auto a = arguments("out");
  a.report_to = {"html"};
  settings_ = {{"command", "tessera sft"}, {"flags", {{"learning_rate", "0.25"}}}};
  const std::string page = a.output_dir + "/report.html";
  std::string seen;
  run(a, [&](std::int64_t step) {
    EXPECT_EQ(fs::exists(page), step > 1);
    if (step == 2) seen = read_file(page);
  });
  EXPECT_NE(seen.find("step 1 of 8"), std::string::npos);
  EXPECT_NE(seen.find("location.reload()"), std::string::npos);
  const std::string last = read_file(page);
  EXPECT_NE(last.find("finished, 8 steps"), std::string::npos);
  EXPECT_EQ(last.find("location.reload()"), std::string::npos);
  EXPECT_NE(last.find("<code>0.25</code>"), std::string::npos) << "the settings of run.json";
  for (const auto& row : rows(a)) {
    for (const char* name : {"train_loss_exact", "eval_loss", "grad_norm"})
      EXPECT_TRUE(!row.contains(name) || last.find(row[name].dump()) != std::string::npos) << row;
  }
  EXPECT_EQ(json::parse(read_file(a.output_dir + "/run.json"))["max_steps"], kSteps);
}

TEST_F(Sessions, AnInterruptedRunLeavesAPageThatIsNotReadAgain) {
  auto a = arguments("out");
  a.report_to = {"all"};
  run(a, stop_in(3));
  const std::string page = read_file(a.output_dir + "/report.html");
  EXPECT_NE(page.find("step 3 of 8"), std::string::npos);
  EXPECT_EQ(page.find("location.reload()"), std::string::npos);
}

TEST_F(Sessions, TheLastRowSaysHowLongEachPhaseTook) {
  auto a = arguments("out");
  run(a, [](std::int64_t step) {
    if (step == 5) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  });
  std::ifstream in(a.output_dir + "/metrics.jsonl");
  json last;
  for (std::string line; std::getline(in, line);) last = json::parse(line);
  const double forward = last.at("forward_and_backward_seconds"), update = last.at("update_seconds");
  EXPECT_GE(forward, 0.06);
  EXPECT_GT(last.at("evaluation_seconds").get<double>(), 0);
  EXPECT_GT(last.at("saving_seconds").get<double>(), 0);
  EXPECT_LE(forward + update, last.at("train_runtime").get<double>() + 0.01);
}

TEST_F(Sessions, TheLastRowSaysWhatTheRunHeldUntilItsResultWasSaved) {
  report::MemoryWatch watch(0);
  memory_ = &watch;
  std::vector<char> held;
  save_result_ = [&] { held.assign(64 << 20, 1); };
  auto a = arguments("unsaved");
  a.save_strategy = Interval::kNo;
  run(a);
  const double before = static_cast<double>(watch.peak().memory.proportional_bytes) / (1 << 20);
  const auto last_row = [&] {
    std::ifstream in(a.output_dir + "/metrics.jsonl");
    json last;
    for (std::string line; std::getline(in, line);) last = json::parse(line);
    return last;
  };
  EXPECT_GE(last_row().at("measured_memory_mib").get<double>(), before - 1);
  EXPECT_GT(last_row().at("saving_seconds").get<double>(), 0);

  save_result_ = nullptr;
  a = arguments("nothing_saved");
  a.save_strategy = Interval::kNo;
  run(a);
  EXPECT_EQ(last_row().at("saving_seconds").get<double>(), 0);
  memory_ = nullptr;
}

// Of the steps that the schedule does not count as large a part as before: with fewer steps than those the rate would
// be that of a step before the first.
TEST_F(Sessions, StepsThatWereSkippedAreCountedInTheStepsOfTheRunThatGoesOn) {
  auto a = arguments("skipping");
  a.max_steps = 4;
  a.nan_policy = NanPolicy::kSkip;
  a.eval_strategy = Interval::kNo;
  a.save_strategy = Interval::kSteps;
  a.save_steps = 4;
  for (int step = 1; step <= 3; ++step) factors_[step] = std::nan("");
  run(a);
  factors_.clear();
  a.resume_from_checkpoint = a.output_dir + "/checkpoint-4";
  a.output_dir = folder_.path() + "/larger_steps";
  a.gradient_accumulation_steps = 2;
  a.max_steps = kSteps;
  EXPECT_SAYS(run(a), "its step 4 is step 2 here");
  EXPECT_DOUBLE_EQ(rows(a).front().at("learning_rate"), a.learning_rate * 7 / 8);  // the second that counts
}

// What an evaluation draws is not in the state that is saved behind it.
TEST_F(Sessions, TheBestModelsCheckpointGoesOnAsItsRunDid) {
  auto a = arguments("out");
  run(a);
  const auto whole = rows(a);
  a.resume_from_checkpoint = a.output_dir + "/checkpoint-2";  // at an epoch's end it is saved later
  a.output_dir = folder_.path() + "/on";
  run(a);
  const auto on = rows(a);
  ASSERT_GE(on.size(), 9u);
  ASSERT_GE(whole.size(), on.size());
  for (std::size_t i = 0; i < on.size(); ++i) EXPECT_EQ(on[i], whole[whole.size() - on.size() + i]) << i;
}

TEST_F(Sessions, NoCheckpointIsWrittenOfWeightsThatAreNotFinite) {
  auto a = arguments("spoilt");
  a.save_strategy = Interval::kSteps;
  a.save_steps = 1;
  a.eval_strategy = Interval::kNo;
  a.learning_rate = 1e39;  // the gradients are finite, what they make of the weights is not
  try {
    run(a);
    FAIL() << "it went on";
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "so no checkpoint of this step is written");
  }
  for (const auto& entry : fs::directory_iterator(a.output_dir))
    EXPECT_EQ(entry.path().string().find("checkpoint"), std::string::npos) << entry.path();
}

TEST_F(Sessions, WeightsThatAreNotFiniteEndTheRunBeforeItsFirstStep) {
  bool trains = true, stepped = false;
  prepare_ = [&](::tessera::testing::SmallNet& model) {
    at::Tensor weight = model.named_parameters()["block1.up.weight"];
    weight.requires_grad_(trains);
    weight.detach().view({-1})[5].fill_(std::nan(""));
  };
  const auto begin = [&] { return run(arguments("loaded"), [&](std::int64_t) { stepped = true; }); };
  try {
    begin();
    FAIL() << "it began";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()),
                "the model as it was loaded has NaN in 'block1.up.weight' of unit 'block1' (rank 0)");
  }
  EXPECT_FALSE(stepped);
  trains = false;
  EXPECT_THROW(begin(), Error) << "the loss of its first step is not finite";
  EXPECT_TRUE(stepped);
}

TEST_F(Sessions, ALossThatIsASpikeIsALineAndARowAlsoWhenTheStepsBeforeItWereAnotherRuns) {
  auto a = arguments("spikes");
  a.max_steps = 12;
  a.eval_strategy = Interval::kNo;
  a.save_strategy = Interval::kSteps;
  a.save_steps = 11;
  factors_ = {{12, 1000.0}};
  EXPECT_SAYS(run(a), "step 12: the loss ");
  json state = json::parse(read_file(a.output_dir + "/trainer_state.json"));
  const auto spiked = [](const json& row) { return row.contains("loss_spike"); };
  const auto& history = state["log_history"];
  ASSERT_EQ(std::count_if(history.begin(), history.end(), spiked), 1) << history;
  const json row = *std::find_if(history.begin(), history.end(), spiked);
  EXPECT_EQ(row["step"], 12);
  EXPECT_GT(row["loss_spike"].get<double>(), 100 * row["loss_median"].get<double>());
  const auto metrics = rows(a);
  EXPECT_EQ(std::count_if(metrics.begin(), metrics.end(), spiked), 1);
  a.resume_from_checkpoint = a.output_dir + "/checkpoint-11";
  const std::string resumed = run(a);
  EXPECT_SAYS(resumed, "step 12: the loss ");
  EXPECT_SAYS(resumed, " is a spike: the median of the steps before is ");
}

TEST_F(Sessions, ARunWithNothingToSaveTakesAwayWhatAKillLeft) {
  auto a = arguments("killed");
  a.save_strategy = Interval::kSteps;
  a.save_steps = kSteps;
  run(a);
  const std::string remains = a.output_dir + "/.partial-checkpoint-7";
  fs::create_directories(remains);
  write_file_atomically(remains + "/model.safetensors", "half");
  a.resume_from_checkpoint = "true";
  const std::string out = run(a);
  EXPECT_SAYS(out, "'" + remains + "' was not written to its end; it is left out");
  EXPECT_FALSE(fs::exists(remains));
  EXPECT_TRUE(fs::exists(a.output_dir + "/checkpoint-8"));
}

TEST_F(Sessions, AutoGoesOnFromACheckpointAndBeginsAnewWhereNoneWasWritten) {
  auto a = arguments("whole");
  a.save_strategy = Interval::kSteps;
  a.save_steps = 2;
  run(a);
  const auto whole = rows(a);
  a.output_dir = folder_.path() + "/parts_of_auto";
  a.resume_from_checkpoint = "auto";
  EXPECT_SAYS(run(a, stop_in(4)), "No checkpoint in '" + a.output_dir + "' yet: beginning anew");
  EXPECT_SAYS(run(a), "Continuing from global step 4");
  EXPECT_EQ(rows(a), whole);

  a.output_dir = folder_.path() + "/damaged";
  fs::create_directories(a.output_dir + "/checkpoint-2");
  try {
    run(a);
    FAIL() << "it began anew, though something was saved";
  } catch (const Error& e) {
    EXPECT_SAYS(std::string(e.what()), "--resume_from_checkpoint auto: no complete checkpoint");
  }
}

TEST_F(Sessions, EarlyStoppingEndsAfterSoManyEvaluationsWithoutImprovement) {
  auto a = arguments("patient");  // the best evaluation is that of step 4
  a.early_stopping_patience = 1;
  const std::string out = run(a);
  EXPECT_NE(out.find("early stop: no improvement of eval_loss in 1 evaluation"), std::string::npos) << out;
  const auto steps_of = [](const std::vector<json>& rows) { return rows.back().at("step").get<int>(); };
  EXPECT_EQ(steps_of(rows(a)), 6);

  a = arguments("more_patient");
  a.early_stopping_patience = 3;
  EXPECT_EQ(run(a).find("early stop"), std::string::npos);
  EXPECT_EQ(steps_of(rows(a)), 8);

  a = arguments("content_with_less");  // worse by less than so much is no improvement: as in transformers
  a.early_stopping_patience = 1;
  a.early_stopping_threshold = -10;
  run(a);
  EXPECT_EQ(steps_of(rows(a)), 6);

  a = arguments("demanding");  // step 4 is better than step 2 by 2, which is not enough to count
  a.early_stopping_patience = 1;
  a.early_stopping_threshold = 2.5;
  run(a);
  EXPECT_EQ(steps_of(rows(a)), 4);
}

// As in transformers, which looks for it in the output folder.
TEST_F(Sessions, TheBestCheckpointIsFoundInAFolderThatWasMoved) {
  auto a = arguments("before_the_move");  // the best evaluation is that of step 4
  a.save_strategy = Interval::kSteps;
  a.save_steps = 2;
  a.save_total_limit = 2;
  a.load_best_model_at_end = true;
  run(a, stop_in(6));
  const auto moved = folder_.path() + "/after_the_move";
  fs::rename(a.output_dir, moved);
  a.output_dir = moved;
  a.resume_from_checkpoint = "true";
  EXPECT_SAYS(run(a), "Loading best model from " + moved + "/checkpoint-4 (score: 0.5).");
  EXPECT_EQ(TrainerState::read(moved + "/trainer_state.json").best_model_checkpoint, moved + "/checkpoint-4");
}

TEST_F(Sessions, ARunWithoutItsBestCheckpointEndsWithTheBestOfThoseThatFollow) {
  auto a = arguments("whole_run");  // the best evaluation is that of step 4
  a.save_strategy = Interval::kSteps;
  a.save_steps = 2;
  a.load_best_model_at_end = true;
  run(a, stop_in(6));
  const auto elsewhere = folder_.path() + "/elsewhere";
  fs::create_directory(elsewhere);
  fs::rename(a.output_dir + "/checkpoint-6", elsewhere + "/checkpoint-6");
  fs::remove_all(a.output_dir);
  const auto lost = a.output_dir + "/checkpoint-4";
  a.output_dir = elsewhere;
  a.resume_from_checkpoint = "true";
  const auto out = run(a);
  EXPECT_SAYS(out, "The best checkpoint so far, '" + lost + "', is not there: the run ends with the best from here on");
  EXPECT_SAYS(out, "Loading best model from " + elsewhere + "/checkpoint-6 (score: 2.5).");
}

TEST_F(Sessions, ARunThatStoppedEarlyHasNothingLeftToDo) {
  auto a = arguments("stopped");  // in step 6 of 8
  a.early_stopping_patience = 1;
  a.save_strategy = Interval::kSteps;
  a.save_steps = 2;
  run(a);
  a.resume_from_checkpoint = a.output_dir + "/checkpoint-6";
  const auto out = run(a);
  EXPECT_NE(out.find("early stop: no improvement of eval_loss in 1 evaluations"), std::string::npos) << out;
  EXPECT_EQ(TrainerState::read(a.output_dir + "/trainer_state.json").global_step, 6);
  a.early_stopping_patience = 3;
  run(a);
  EXPECT_EQ(TrainerState::read(a.output_dir + "/trainer_state.json").global_step, 8) << "more patience goes on";
}

TEST_F(Sessions, AnEpochThatEarlyStoppingCutsEndsAsOthersDo) {
  auto a = arguments("cut_epoch");  // it stops in step 6 of 8, in the middle of the second epoch
  a.early_stopping_patience = 1;
  a.logging_strategy = a.save_strategy = Interval::kEpoch;
  run(a);
  std::vector<std::pair<int, double>> losses;
  for (const json& row : rows(a))
    if (row.contains("loss")) losses.emplace_back(row.at("step"), row.at("epoch"));
  EXPECT_EQ(losses, (std::vector<std::pair<int, double>>{{4, 1.0}, {6, 1.5}}));
  std::vector<std::int64_t> saved;
  for (const auto& c : checkpoint::list_checkpoints(a.output_dir)) saved.push_back(c.step);
  EXPECT_EQ(saved, (std::vector<std::int64_t>{4, 6}));
}

// As in transformers: it waits for no delay, and is not among the models to choose from.
TEST_F(Sessions, TheEvaluationBeforeTheFirstStepIsLoggedAlone) {
  auto a = arguments("on_start");
  a.eval_on_start = true;
  a.eval_delay = 3;
  a.greater_is_better = true;  // steps 0 and 8 are the best
  run(a);
  std::vector<int> steps;
  for (const json& row : rows(a))
    if (row.contains("eval_loss")) steps.push_back(row.at("step"));
  EXPECT_EQ(steps, (std::vector<int>{0, 4, 6, 8}));
  const auto state = TrainerState::read(a.output_dir + "/trainer_state.json");
  EXPECT_EQ(state.best_global_step, 8);
  EXPECT_EQ(state.best_model_checkpoint, a.output_dir + "/checkpoint-8");
}

// As in transformers: where nothing is saved, the best value has no step.
TEST_F(Sessions, TheBestStepIsOneThatIsSaved) {
  auto a = arguments("unsaved");
  a.save_strategy = Interval::kNo;
  run(a);
  const auto state = json::parse(read_file(a.output_dir + "/trainer_state.json"));
  EXPECT_EQ(state.at("best_metric"), 0.5);
  EXPECT_TRUE(state.at("best_global_step").is_null()) << state.at("best_global_step");
  EXPECT_TRUE(state.at("best_model_checkpoint").is_null());
}

TEST_F(Sessions, AnEvaluationThatIsNotANumberIsNeverTheBest) {
  auto a = arguments("nan");
  not_a_number_until_ = 4;
  run(a);
  const auto state = TrainerState::read(a.output_dir + "/trainer_state.json");
  EXPECT_EQ(state.best_metric, 2.5);
  EXPECT_EQ(state.best_global_step, 6);
  a = arguments("nan_always");
  not_a_number_until_ = 8;
  a.early_stopping_patience = 2;
  const std::string out = run(a);
  EXPECT_NE(out.find("early stop"), std::string::npos) << out;
  EXPECT_TRUE(checkpoint::list_checkpoints(a.output_dir).empty());
  EXPECT_FALSE(TrainerState::read(a.output_dir + "/trainer_state.json").best_metric) << "there is none";
}

TEST_F(Sessions, ACheckpointThatDoesNotExistIsNamedBesideThoseThatDo) {
  auto a = arguments("mistyped");
  a.save_strategy = Interval::kSteps;
  a.save_steps = 4;
  run(a);
  a.resume_from_checkpoint = a.output_dir + "/checkpoint-5";
  try {
    run(a);
    FAIL() << "expected an error";
  } catch (const CheckpointError& e) {
    EXPECT_SAYS(std::string(e.what()), "checkpoint-5' does not exist");
    EXPECT_SAYS(std::string(e.what()),
                "(there is " + a.output_dir + "/checkpoint-4, " + a.output_dir + "/checkpoint-8)");
  }
}

// With any flag that asks for the best model, as in transformers; without one it is not named.
TEST_F(Sessions, TheBestCheckpointStaysWhereAFlagAsksForTheBest) {
  auto a = arguments("limited");
  a.save_strategy = Interval::kSteps;
  a.save_steps = 2;
  a.save_total_limit = 2;
  const auto saved = [&a] {
    std::vector<std::int64_t> steps;
    for (const auto& c : checkpoint::list_checkpoints(a.output_dir)) steps.push_back(c.step);
    return steps;
  };
  run(a);
  EXPECT_EQ(saved(), (std::vector<std::int64_t>{4, 8}));
  a.output_dir = folder_.path() + "/not_asked";
  a.chooses_best = false;
  run(a);
  EXPECT_EQ(saved(), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(json::parse(read_file(a.output_dir + "/trainer_state.json")).at("best_metric"), json());
}

TEST_F(Sessions, TheStateSaysTheStepsThatTransformersSays) {
  const auto state_of = [this](const TrainingArguments& a) {
    run(a);
    return json::parse(read_file(a.output_dir + "/trainer_state.json"));
  };
  auto a = arguments("parts");
  a.logging_steps = 0.3;
  a.eval_steps = std::nullopt;
  json state = state_of(a);
  EXPECT_EQ(state.at("logging_steps"), 3);
  EXPECT_EQ(state.at("eval_steps"), 3);
  a = arguments("by_epochs");
  a.eval_strategy = Interval::kEpoch;
  a.eval_steps = std::nullopt;
  EXPECT_EQ(state_of(a).at("eval_steps"), 500);  // nothing says how many
}

TEST_F(Sessions, TheBestModelIsWhatARunEndsWith) {
  auto a = arguments("best");
  a.lr_scheduler_type = "constant";
  a.load_best_model_at_end = true;
  const std::string out = run(a);
  EXPECT_NE(out.find("checkpoint-4 (score: 0.5)"), std::string::npos) << out;
  const auto best = weights_;
  a = arguments("four");
  a.lr_scheduler_type = "constant";
  a.max_steps = 4;
  run(a);
  EXPECT_TRUE(at::equal(best, weights_));
  a = arguments("eight");
  a.lr_scheduler_type = "constant";
  run(a);
  EXPECT_FALSE(at::equal(best, weights_));
}

// Training goes on at other points, whose bits no evaluation and no save may touch.
TEST_F(Sessions, AnAverageIsWhatIsEvaluatedAndSavedWhileTrainingGoesOnBitForBit) {
  for (const bool background : {false, true}) {
    const auto of = [&](const std::string& out) {
      auto a = arguments(out + (background ? "_background" : ""));
      a.optim = "schedule_free_adamw";
      a.learning_rate = 0.05;
      a.lr_scheduler_type = "constant";
      a.save_in_background = background;
      a.save_strategy = Interval::kSteps;
      a.save_steps = 4;
      return a;
    };
    auto a = of("averaged");
    run(a);
    const auto whole = weights_;
    EXPECT_TRUE(at::equal(saved_, whole));
    EXPECT_TRUE(at::equal(evaluated_, whole));

    auto quiet = of("quiet");
    quiet.eval_strategy = Interval::kNo;
    quiet.save_strategy = Interval::kNo;
    run(quiet);
    EXPECT_TRUE(at::equal(weights_, whole));

    a.resume_from_checkpoint = a.output_dir + "/checkpoint-4";
    a.output_dir = folder_.path() + "/averaged_on" + std::to_string(background);
    run(a);
    EXPECT_TRUE(at::equal(weights_, whole));

    auto best = of("averaged_best");  // that of step 4
    best.load_best_model_at_end = true;
    run(best);
    const auto at_four = weights_;
    auto four = of("averaged_four");
    four.max_steps = 4;
    run(four);
    EXPECT_TRUE(at::equal(weights_, at_four));
    EXPECT_FALSE(at::equal(weights_, whole));
  }
}

// Who sends the signal may wait for a step and a save, not for an evaluation: the run that goes on makes up for it.
TEST_F(Sessions, ASignalSavesBeforeTheEvaluationThatIsDue) {
  struct Case {
    Interval evaluates, saves, logs;
    std::int64_t stops_in;
  };
  int number = 0;
  for (const auto& [evaluates, saves, logs, stops_in] : {Case{Interval::kEpoch, Interval::kEpoch, Interval::kEpoch, 4},
                                                         {Interval::kEpoch, Interval::kBest, Interval::kSteps, 4},
                                                         {Interval::kEpoch, Interval::kNo, Interval::kSteps, 4},
                                                         {Interval::kSteps, Interval::kBest, Interval::kSteps, 4},
                                                         {Interval::kSteps, Interval::kSteps, Interval::kSteps, 2}}) {
    SCOPED_TRACE(number);
    auto a = arguments("whole" + std::to_string(number));
    a.eval_strategy = evaluates;
    a.save_strategy = saves;
    a.logging_strategy = logs;
    a.save_steps = 2;
    a.load_best_model_at_end = saves != Interval::kNo;
    const std::string whole_out = run(a);
    const auto whole = rows(a);

    a.output_dir = folder_.path() + "/parts" + std::to_string(number++);
    const std::string first = run(a, stop_in(stops_in));
    const std::string checkpoint = a.output_dir + "/checkpoint-" + std::to_string(stops_in);
    EXPECT_NE(first.find("interrupted after step " + std::to_string(stops_in)), std::string::npos) << first;
    EXPECT_TRUE(fs::exists(checkpoint)) << first;
    const auto before = rows(a);
    ASSERT_FALSE(before.empty());
    EXPECT_FALSE(before.back().contains("eval_loss")) << before.back();

    a.resume_from_checkpoint = "true";
    const std::string second = run(a);
    EXPECT_EQ(rows(a), whole);
    if (!a.load_best_model_at_end) continue;
    EXPECT_NE(whole_out.find("/checkpoint-4 (score: 0.5)"), std::string::npos) << whole_out;
    EXPECT_NE(second.find("/checkpoint-4 (score: 0.5)"), std::string::npos) << second;
  }
}

// Rows 6 and 7 are of a run that is no more.
TEST_F(Sessions, AKilledRunThatGoesOnHasTheRowsOfOneThatWasNotKilled) {
  auto a = arguments("whole");
  a.save_strategy = Interval::kSteps;
  a.save_steps = 5;
  run(a);
  const auto whole = rows(a);
  a.output_dir = folder_.path() + "/killed";
  a.report_to = {"tensorboard"};
  a.logging_dir = a.output_dir + "/board";
  for (const std::int64_t killed_in : {8, 7}) {
    EXPECT_THROW(run(a,
                     [=](std::int64_t step) {
                       if (step == killed_in) throw std::runtime_error("killed");
                     }),
                 std::runtime_error);
    EXPECT_EQ(rows(a).back().at("step"), killed_in - 1);
    std::ofstream(a.output_dir + "/metrics.jsonl", std::ios::app) << "{\"loss\": 0.";
    a.resume_from_checkpoint = "true";
  }
  run(a);
  EXPECT_EQ(rows(a), whole);

  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(a.logging_dir)) files.push_back(read_file(entry.path().string()));
  const std::string start = {0x10, 6, 0x3a, 2, 8, 1};  // Event: step 6, session_log {status: START}
  EXPECT_EQ(std::count_if(files.begin(), files.end(), [&](const auto& file) { return file.find(start) != file.npos; }),
            2);
  EXPECT_EQ(files.size(), 3u);
}

TEST_F(Sessions, AFileThatIsTakenAwayEndsTheRunOnEveryRankByName) {
  for (const char* lost : {"metrics.jsonl", "board"}) {
    auto a = arguments(std::string("lost_") + lost);
    a.report_to = {"tensorboard"};
    a.logging_dir = a.output_dir + "/board";
    std::mutex mutex;
    std::vector<std::string> said;
    comm::run_threads(2, [&](auto group) {
      const int rank = group->rank();
      try {
        run_on(group, a, [&, rank](std::int64_t step) {
          if (step == 3 && rank == 0) fs::remove_all(a.output_dir + "/" + lost);
        });
      } catch (const CheckpointError& e) {
        const std::lock_guard lock(mutex);
        said.emplace_back(e.what());
      }
    });
    ASSERT_EQ(said.size(), 2u) << lost;
    EXPECT_EQ(said[0], said[1]);
    EXPECT_NE(said[0].find(std::string("/") + lost), std::string::npos) << said[0];
    EXPECT_NE(said[0].find("was removed"), std::string::npos) << said[0];
  }
}

TEST_F(Sessions, OnlyEvaluatingIsRefusedWhileAnotherRunHasTheFolder) {
  const auto a = arguments("held");
  SessionTask task;
  task.evaluate = [](const report::BarStyle&) { return Metrics{{"eval_loss", 1}}; };
  const auto evaluate = [&] {
    comm::run_threads(1, [&](auto group) {
      std::ostringstream out;
      evaluate_only(a, task, *group, out);
    });
  };
  {
    const checkpoint::RunLock other(a.output_dir);
    EXPECT_THROW(evaluate(), CheckpointError);
    EXPECT_FALSE(fs::exists(a.output_dir + "/metrics.jsonl"));
  }
  evaluate();
  EXPECT_EQ(rows(a).size(), 1u);
}

}  // namespace
}  // namespace tessera::train
