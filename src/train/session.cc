#include "train/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <ostream>

#include "base/file.h"
#include "base/grouped.h"
#include "base/json_text.h"
#include "base/rank_record.h"
#include "base/rounded.h"
#include "checkpoint/restore.h"
#include "fsdp/runtime/check_replicas.h"
#include "tensor/device_memory.h"
#include "tensor/generators.h"
#include "tessera/base/error.h"
#include "train/changed_flags.h"
#include "train/report_to.h"
#include "train/results.h"
#include "train/seconds.h"
#include "train/shown_average.h"
#include "train/throughput.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

}  // namespace

Session::Session(const TrainingArguments& arguments, SessionTask task, const Training& training, std::ostream& out,
                 std::ostream& err)
    : arguments_(arguments),
      task_(std::move(task)),
      trainer_(training.trainer),
      model_(training.model),
      optimizer_(training.optimizer),
      out_(out),
      bars_(report::bar_style(model_.group().rank(), arguments.disable_tqdm)),
      bar_(err, bars_, trainer_.total_steps()),
      checkpoints_(arguments, std::move(task_.checkpoints), training, arguments.trainer_options(),
                   arguments.per_device_train_batch_size, out),
      state_(checkpoints_.state()) {
  const auto every = [&](double value) { return TrainingArguments::every(value, state_.max_steps); };
  state_.logging_steps = every(arguments_.logging_steps);
  state_.early_stopping_patience = arguments_.early_stopping_patience;
  state_.early_stopping_threshold = arguments_.early_stopping_threshold;
  constexpr double kUnset = 500;  // what transformers' TrainerState says then
  const bool by_steps = arguments_.eval_strategy == Interval::kSteps;
  state_.eval_steps = every(by_steps ? eval_steps() : arguments_.eval_steps.value_or(kUnset));
  if (model_.group().rank() != 0) return;
  if (read_report_to(arguments_.report_to).html) page_ = std::make_unique<report::LiveReport>(arguments_.output_dir);
  if (task_.settings.is_null()) return;
  changed_flags_ = changed_flags(arguments_, task_.settings);
  write_settings();
}

// Both are watched under the names that they have from here on.
void Session::open_records() {
  if (model_.group().rank() != 0) return;
  const std::string file = arguments_.metrics_path();
  const bool resumes = checkpoints_.resumed_at() > 0;
  if (resumes) report::drop_rows_after(file, state_.log_history, checkpoints_.step_of_checkpoint());
  metrics_ = report::MetricsFile(file);
  checkpoints_.watch(metrics_.hand_over_name());
  if (!read_report_to(arguments_.report_to).tensorboard) return;
  tensorboard_ =
      std::make_unique<report::TensorBoardWriter>(tensorboard_folder(arguments_.logging_dir, arguments_.output_dir));
  if (resumes) tensorboard_->purge_from(checkpoints_.step_of_checkpoint() + 1);
  checkpoints_.watch(tensorboard_->hand_over_name());
}

void Session::write_settings() const {
  Json settings = task_.settings;
  settings["max_steps"] = state_.max_steps;
  if (!arguments_.metrics_file.empty()) settings["metrics_file"] = fs::absolute(arguments_.metrics_file).string();
  write_file_atomically(arguments_.output_dir + "/run.json", json_text(settings, 2) + "\n");
}

bool Session::run() {
  print_banner();
  checkpoints_.resume();
  if (arguments_.load_best_model_at_end) checkpoints_.forget_lost_best();
  open_records();
  if (checkpoints_.resumed_at() > 0) out_ << changed_flags_;
  check_weights();
  bar_.start_at(state_.global_step);
  if (arguments_.eval_on_start && checkpoints_.resumed_at() == 0) measure();
  if (state_.evaluation_due) evaluate_what_was_left();
  if (!stop_) stop_early();  // as the run had that is resumed
  const auto start = Clock::now();
  TrainerCallbacks callbacks = checkpoints_.callbacks();
  callbacks.on_step = [this](const StepReport& step) {
    on_step(step);
    enter(Phase::kForwardAndBackward);
  };
  callbacks.before_update = [this, others = std::move(callbacks.before_update)] {
    others();
    enter(Phase::kUpdate);
  };
  callbacks.interruption = [this, others = std::move(callbacks.interruption)] {
    return others() || (task_.memory && task_.memory->over());
  };
  enter(Phase::kForwardAndBackward);
  callbacks.on_epoch_end = [this](const EpochReport& epoch) {
    on_epoch_end(epoch);
    enter(Phase::kForwardAndBackward);
  };
  callbacks.should_stop = [this] {
    if (profile_ && !stop_) profile_->before_step(trainer_.done());
    return stop_;
  };
  if (!arguments_.profile.empty()) {
    profile_ = std::make_unique<Profile>(arguments_.profile, model_.group(), trainer_.done(), trainer_.total_steps());
  }
  trainer_.run(callbacks);
  bar_.close();
  if (profile_) out_ << profile_->finish() << "\n" << std::flush;
  if (checkpoints_.has_saved()) enter(Phase::kSaving);
  checkpoints_.finish();
  phases_.stop();
  if (interrupted_) {
    if (page_) page_->finish();
    return false;
  }
  if (arguments_.load_best_model_at_end && !state_.best_model_checkpoint.empty()) load_best();
  if (optimizer_.averages()) {
    optimizer_.show_average();
    model_.mark_updated();
  }
  summarise(seconds_since(start) - measuring_seconds_);
  return true;
}

void Session::enter(Phase phase) {
  phases_.enter(phase);
  if (RankRecord* record = model_.group().record())
    record->phase.set(kPhaseNames[static_cast<std::size_t>(phase)].text);
  if (task_.memory) task_.memory->enter(kPhaseNames[static_cast<std::size_t>(phase)].text);
}

// A NaN spreads: what a step makes of it says little of where it came from.
void Session::check_weights() {
  if (const std::string frozen = first_non_finite_weight(model_, Weights::kFrozen); !frozen.empty())
    out_ << fmt::format("warning: the model has {}, which does not train\n", frozen) << std::flush;
  const std::string found = first_non_finite_weight(model_, Weights::kTrained);
  if (found.empty()) return;
  const std::string from = checkpoints_.resumed_at() > 0 ? "the checkpoint '" + checkpoints_.resumed_from() + "'"
                                                         : std::string("the model as it was loaded");
  throw DataError(fmt::format("{} has {}: its file is damaged, or was written by a run that had diverged; use another",
                              from, found));
}

void Session::print_banner() {
  const int ranks = model_.group().size();
  const auto total = arguments_.per_device_train_batch_size * ranks * arguments_.gradient_accumulation_steps;
  const auto line = [this](const char* name, std::int64_t value) {
    out_ << "  " << name << " = " << grouped(value) << "\n";
  };
  out_ << "***** Running training *****\n";
  line("Num examples", task_.num_examples);
  line("Num Epochs", trainer_.epochs());
  line("Instantaneous batch size per device", arguments_.per_device_train_batch_size);
  line("Total train batch size (w. parallel, distributed & accumulation)", total);
  line("Gradient Accumulation steps", arguments_.gradient_accumulation_steps);
  line("Total optimization steps", trainer_.total_steps());
  line("Number of trainable parameters", task_.trainable_parameters);
  out_ << fmt::format("  Ranks = {} ({})\n", ranks, model_.group().backend()) << std::flush;
}

bool Session::due(Interval strategy, double steps, bool at_epoch_end) const {
  if (strategy == Interval::kEpoch) return at_epoch_end;
  if (strategy != Interval::kSteps || at_epoch_end) return false;
  return state_.global_step % TrainingArguments::every(steps, state_.max_steps) == 0;
}

void Session::on_step(const StepReport& step) {
  if (profile_) profile_->after_step(step.step);
  checkpoints_.poll(step);
  state_.global_step = step.step;
  state_.epoch = step.epoch;
  epoch_ends_ = step.ends_epoch;
  state_.num_input_tokens_seen += step.input_tokens;
  state_.total_flos += task_.flops_per_token * static_cast<double>(step.input_tokens);
  LogWindow& window = state_.window;
  const auto batches = task_.batch_metrics ? task_.batch_metrics() : std::vector<Metrics>{};
  if (step.skipped.empty()) {
    state_.loss.add(step.loss);
    window.loss.add(step.loss);
    window.seconds += step.seconds;
    window.tokens += step.input_tokens;
    for (const auto& metrics : batches) window.metrics.add(metrics);
    if (const auto spike = state_.recent_losses.add(step.loss)) log_spike(*spike);
  } else {
    bar_.clear();
    out_ << fmt::format("step {} changes nothing (--nan_policy skip): {}\n", step.step, step.skipped) << std::flush;
  }
  if (!step.overflow.empty()) {
    bar_.clear();
    out_ << fmt::format("step {} changes nothing: {}\n", step.step, step.overflow) << std::flush;
  }
  all_.seconds += step.seconds;
  all_.tokens += step.input_tokens;
  all_.rows += step.rows;
  ++all_.steps;
  last_grad_norm_ = step.grad_norm;
  last_learning_rate_ = step.learning_rate;
  const auto rate = static_cast<double>(step.input_tokens) / step.seconds;
  bar_.set_postfix(fmt::format("loss={:.4f}", step.loss) + (rate > 0 ? fmt::format(", {:.0f} tok/s", rate) : ""));
  bar_.update();

  if (arguments_.check_replicas > 0 && step.step % arguments_.check_replicas == 0) check_replicas();
  const bool last = step.step == state_.max_steps;
  if (due(arguments_.logging_strategy, arguments_.logging_steps, false) ||
      (arguments_.logging_first_step && step.step == 1)) {
    log_step();
  }
  const bool processor_computes = task_.device.is_cpu();  // whose rate is measured
  if (gemm_rate_ == 0 && task_.flops_per_token > 0 && processor_computes) measure_machine(step.seconds);
  if (step.interrupted && !last) return interrupt(step);
  if (due(arguments_.eval_strategy, eval_steps(), false)) evaluate();
  if (checkpoints_.due(false)) save_checkpoint();
}

void Session::check_replicas() {
  const auto parameters = fsdp::check_replicas(model_);
  bar_.clear();
  out_ << fmt::format("step {}: all ranks hold the same {} parameters\n", state_.global_step, grouped(parameters))
       << std::flush;
}

void Session::interrupt(const StepReport& step) {
  interrupted_ = stop_ = true;
  if (step.ends_epoch) log_epoch();
  state_.evaluation_due = due(arguments_.eval_strategy, eval_steps(), false) ||
                          (step.ends_epoch && due(arguments_.eval_strategy, eval_steps(), true));
  save_now();
  bar_.clear();
  out_ << fmt::format("interrupted after step {}; continue with --resume_from_checkpoint true\n", step.step)
       << std::flush;
}

void Session::evaluate_what_was_left() {
  state_.evaluation_due = false;
  epoch_ends_ = state_.global_step % trainer_.steps_per_epoch() == 0;
  evaluate();
  if (epoch_ends_) {
    const std::int64_t epoch = state_.global_step / trainer_.steps_per_epoch() - 1;
    close_epoch({.epoch = epoch, .mean_loss = trainer_.epoch_loss().mean()});
  }
  epoch_ends_ = save_at_epoch_end_ = false;
  save_now();  // it is there already: but it may be the best one
}

void Session::close_epoch(const EpochReport& epoch) {
  if (due(arguments_.eval_strategy, 0, true)) evaluate();
  if (!task_.presentation) return;
  const bool evaluated = evaluated_at_ == state_.global_step;
  bar_.clear();
  const ShownAverage result(optimizer_, model_);  // what it may save
  Json row = task_.presentation->on_epoch_end(epoch, evaluated ? &evaluated_ : nullptr, evaluated && is_best_);
  row["step"] = state_.global_step;
  metrics_.write(std::move(row));
}

void Session::on_epoch_end(const EpochReport& epoch) {
  if (interrupted_) return;
  log_epoch();
  close_epoch(epoch);
  epoch_ends_ = false;
  if (checkpoints_.due(true) || save_at_epoch_end_) save_checkpoint();
  save_at_epoch_end_ = false;
}

void Session::log_epoch() {
  if (arguments_.logging_strategy == Interval::kEpoch) log_step();
}

void Session::log_step() {
  const LogWindow& window = state_.window;
  if (window.loss.steps == 0) return;  // none was taken
  Json row = {{"loss", rounded(window.loss.mean(), 4)}};
  if (arguments_.max_grad_norm > 0) row["grad_norm"] = last_grad_norm_;
  if (task_.has_one_rate) row["learning_rate"] = last_learning_rate_;
  if (window.tokens > 0) row["num_tokens"] = static_cast<double>(state_.num_input_tokens_seen);
  for (const auto& [name, value] : window.metrics.values()) row[name] = value;
  row["epoch"] = state_.epoch;
  Json extra = {{"train_loss_exact", window.loss.mean()},
                {"step_seconds", window.seconds / static_cast<double>(window.loss.steps)}};
  if (window.tokens > 0) {
    const double rate = static_cast<double>(window.tokens) / window.seconds;
    extra["tokens_per_second"] = rate;
    if (gemm_rate_ > 0) extra["model_flops_utilization"] = rate * task_.flops_per_token / gemm_rate_;
  }
  log(std::move(row), extra);
  state_.window = {};
}

void Session::log_spike(const LossSpike& spike) {
  bar_.clear();
  out_ << fmt::format(
              "step {}: the loss {:.4g} is a spike: the median of the steps before is {:.4g}, their median deviation "
              "{:.2g}\n",
              state_.global_step, spike.loss, spike.median, spike.deviation)
       << std::flush;
  const Json row = {
      {"loss_spike", spike.loss}, {"loss_median", spike.median}, {"epoch", state_.epoch}, {"step", state_.global_step}};
  state_.log_history.push_back(nlohmann::json::parse(json_text(row)));
  metrics_.write(row);
}

void Session::measure_machine(double step_seconds) {
  phases_.stop();
  const auto start = Clock::now();
  gemm_rate_ = measure_gemm_rate(model_.group(), task_.compute_dtype, step_seconds);
  measuring_seconds_ += seconds_since(start);
}

void Session::log(Json row, const Json& extra) {
  Json with_step = show(std::move(row));
  with_step.update(extra);
  metrics_.write(with_step);
  if (page_) page_->refresh();
}

Json Session::show(Json row) {
  Json with_step = row;
  with_step["step"] = state_.global_step;
  state_.log_history.push_back(nlohmann::json::parse(json_text(with_step)));
  if (tensorboard_) {
    for (const auto& [key, value] : row.items()) {
      const std::string tag = key.starts_with("eval_") ? "eval/" + key.substr(5) : "train/" + key;
      if (value.is_number()) tensorboard_->scalar(tag, value.get<double>(), state_.global_step);
    }
  }
  if (task_.presentation) return with_step;
  if (row.contains("epoch")) row["epoch"] = rounded(row["epoch"].get<double>(), 2);
  bar_.clear();
  out_ << python_text(row) << "\n" << std::flush;
  return with_step;
}

void Session::evaluate() {
  if (evaluated_at_ == state_.global_step) return;
  const double waited =
      arguments_.eval_strategy == Interval::kEpoch ? state_.epoch : static_cast<double>(state_.global_step);
  if (waited < arguments_.eval_delay) return;
  measure();
  judge();
}

void Session::measure() {
  evaluated_at_ = state_.global_step;
  bar_.clear();
  enter(Phase::kEvaluation);
  const ShownAverage result(optimizer_, model_);
  const tensor::RandomGuard random;  // the run, and what is saved afterwards, go on as without evaluations
  tensor::naming_device_errors([&] { return "evaluation, " + model_.activity(); },
                               [&] { evaluated_ = task_.evaluate(bars_); });
  Json row = named_values(evaluated_);
  row["epoch"] = state_.epoch;
  log(std::move(row), Json::object());
  if (task_.presentation) task_.presentation->on_evaluation(evaluated_, epoch_ends_);
  if (task_.samples) metrics_.write({{"step", state_.global_step}, {"samples", task_.samples()}});
}

void Session::judge() {
  const auto found = std::find_if(evaluated_.begin(), evaluated_.end(),
                                  [&](const auto& m) { return m.first == arguments_.metric_for_best_model; });
  if (found == evaluated_.end()) {
    std::string names;
    for (const auto& [name, value] : evaluated_) names += (names.empty() ? "" : ", ") + name;
    throw ConfigError(
        "metric_for_best_model '" + arguments_.metric_for_best_model + "' is not measured; there are " + names,
        "metric_for_best_model");
  }
  trainer_.schedule().observe(found->second);
  if (!arguments_.chooses_best && !task_.presentation) return;
  is_best_ = update_best(found->second);
  if (is_best_ && arguments_.save_strategy == Interval::kBest) save_checkpoint();
}

bool Session::update_best(double value) {
  const bool greater = arguments_.greater_is_better.value_or(false);
  constexpr double kWorst = std::numeric_limits<double>::infinity();
  const double best = state_.best_metric.value_or(greater ? -kWorst : kWorst);
  const double gain = greater ? value - best : best - value;  // of a NaN: none
  const bool better = gain > 0, counts = better && gain > arguments_.early_stopping_threshold;
  state_.evaluations_without_improvement = counts ? 0 : state_.evaluations_without_improvement + 1;
  if (better) state_.best_metric = value;
  if (better && arguments_.save_strategy != Interval::kNo) state_.best_global_step = state_.global_step;
  stop_early();
  return better;
}

void Session::stop_early() {
  if (!state_.stops_early()) return;
  bar_.clear();
  out_ << fmt::format("early stop: no improvement of {} in {} evaluations\n", arguments_.metric_for_best_model,
                      state_.evaluations_without_improvement)
       << std::flush;
  stop_ = true;
}

void Session::save_checkpoint() {
  if (epoch_ends_) {
    save_at_epoch_end_ = true;
    return;
  }
  save_now();
}

void Session::save_now() {
  enter(Phase::kSaving);
  if (state_.best_metric && state_.best_global_step == state_.global_step) {
    const bool is_there = checkpoints_.resumed_at() > 0 && checkpoints_.resumed_at() == state_.global_step;
    state_.best_model_checkpoint = is_there
                                       ? checkpoints_.resumed_from()
                                       : fmt::format("{}/checkpoint-{}", arguments_.output_dir, state_.global_step);
  }
  tensor::naming_device_errors([&] { return "saving step " + std::to_string(state_.global_step); },
                               [&] { checkpoints_.save(arguments_.chooses_best ? state_.best_model_checkpoint : ""); });
  if (page_) page_->renew();
}

void Session::load_best() {
  // With the optimizer's state: it holds what an average is made of, and which ranks AdaLoRA keeps.
  const std::string obstacle = checkpoint::restore_checkpoint(model_, &optimizer_, state_.best_model_checkpoint);
  if (!obstacle.empty()) {
    throw CheckpointError("the best checkpoint '" + state_.best_model_checkpoint + "' cannot be loaded: " + obstacle +
                              "; the last weights are in the newest checkpoint of '" + arguments_.output_dir + "'",
                          state_.best_model_checkpoint);
  }
  out_ << fmt::format("Loading best model from {} (score: {:.5g}).\n", state_.best_model_checkpoint,
                      *state_.best_metric);
}

void Session::summarise(double seconds) {
  const auto steps = static_cast<double>(all_.steps), rows = static_cast<double>(all_.rows);
  Json row = {{"train_runtime", rounded(seconds, 4)},
              {"train_samples_per_second", rounded(rows / seconds, 3)},
              {"train_steps_per_second", rounded(steps / seconds, 3)},
              {"total_flos", state_.total_flos},
              {"train_loss", state_.loss.mean()}};
  if (state_.window.tokens > 0) row["num_tokens"] = static_cast<double>(state_.num_input_tokens_seen);  // since a row
  for (const auto& [name, value] : state_.window.metrics.values()) row[name] = value;
  row["epoch"] = state_.epoch;
  if (all_.tokens > 0 && all_.seconds > 0) {
    const double rate = static_cast<double>(all_.tokens) / all_.seconds;
    row["train_tokens_per_second"] = rounded(rate, 1);
    if (gemm_rate_ > 0) row["model_flops_utilization"] = rounded(rate * task_.flops_per_token / gemm_rate_, 4);
  }
  Json shown = show(std::move(row));
  if (model_.group().rank() == 0) {
    write_file_atomically(arguments_.output_dir + "/trainer_state.json", state_.to_json());
    for (const std::string& tracker : read_report_to(arguments_.report_to).trackers)
      out_ << fmt::format("{} gets this run by\n  {}\n", tracker, import_command(tracker, arguments_.metrics_path()))
           << std::flush;
  }
  if (task_.save_result) {
    enter(Phase::kSaving);
    task_.save_result();
    phases_.stop();
  }
  shown.update(measured());
  metrics_.write(shown);
  if (page_) page_->finish();
}

Json Session::measured() const {
  Json extra = Json::object();
  const auto add = [&](const char* key, std::int64_t bytes) {
    constexpr double kMiB = 1 << 20;
    extra[key] = rounded(static_cast<double>(bytes) / kMiB, 1);
  };
  if (task_.memory) {
    add("planned_memory_mib", task_.planned_bytes);
    const auto measured = task_.memory->peak().memory;
    add("measured_memory_mib", measured.proportional_bytes);
    add("measured_own_mib", measured.anonymous_bytes);
    add("measured_files_mib", measured.file_bytes);
    add("measured_shared_mib", measured.shared_bytes);
    if (checkpoints_.copied_bytes() > 0) add("measured_copies_mib", checkpoints_.copied_bytes());
  }
  if (task_.planned_device_bytes > 0) add("planned_device_mib", task_.planned_device_bytes);
  if (const auto peak = tensor::peak_device_bytes(task_.device)) add("measured_device_mib", *peak);
  for (std::size_t i = 0; i < kPhaseCount; ++i)
    extra[kPhaseNames[i].key] = rounded(phases_.seconds(static_cast<Phase>(i)), 4);
  return extra;
}

}  // namespace tessera::train
