#include "train/trainer_state.h"

#include <fmt/format.h>

#include <cmath>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/plain_reason.h"
#include "base/python_json.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using SortedJson = nlohmann::json;

// Entries of stateful_callbacks: transformers leaves those that it does not know alone.
constexpr const char* kStopper = "EarlyStoppingCallback";
constexpr const char* kRun = "TesseraRun";

/// As many digits as a reader needs: five, and all before the point.
std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const std::string text = size >= 99999.5 && size < 1e15 ? fmt::format("{:.0f}", value) : fmt::format("{:.5g}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::string TrainerState::to_json() const {
  const bool has_best = best_metric.has_value();
  const SortedJson control = {{"should_epoch_stop", false},
                              {"should_evaluate", false},
                              {"should_log", false},
                              {"should_save", true},
                              {"should_training_stop", global_step >= max_steps || stops_early()}};
  SortedJson callbacks = {{"TrainerControl", {{"args", control}, {"attributes", SortedJson::object()}}},
                          {kRun,
                           {{"attributes",
                             {{"loss_sum", loss.sum},
                              {"loss_steps", loss.steps},
                              {"epoch_loss_sum", epoch_loss.sum},
                              {"epoch_loss_steps", epoch_loss.steps},
                              {"log_loss_sum", window.loss.sum},
                              {"log_loss_steps", window.loss.steps},
                              {"log_seconds", window.seconds},
                              {"log_tokens", window.tokens},
                              {"log_metrics", window.metrics.to_json()},
                              {"recent_losses", recent_losses.oldest_first()},
                              {"loss_scale", loss_scale},
                              {"steps_at_loss_scale", steps_at_loss_scale},
                              {"skipped_steps", skipped_steps},
                              {"rows_per_step", rows_per_step},
                              {"steps_per_epoch", steps_per_epoch},
                              {"evaluation_due", evaluation_due},
                              {"schedule", schedule}}}}}};
  if (early_stopping_patience > 0) {
    callbacks[kStopper] = {{"args",
                            {{"early_stopping_patience", early_stopping_patience},
                             {"early_stopping_threshold", early_stopping_threshold}}},
                           {"attributes", {{"early_stopping_patience_counter", evaluations_without_improvement}}}};
  }
  const SortedJson json = {
      {"best_global_step", best_global_step > 0 ? SortedJson(best_global_step) : SortedJson()},
      {"best_metric", has_best ? SortedJson(*best_metric) : SortedJson()},
      {"best_model_checkpoint", best_model_checkpoint.empty() ? SortedJson() : SortedJson(best_model_checkpoint)},
      {"epoch", epoch},
      {"eval_steps", eval_steps},
      {"global_step", global_step},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", log_history},
      {"logging_steps", logging_steps},
      {"max_steps", max_steps},
      {"num_input_tokens_seen", num_input_tokens_seen},
      {"num_train_epochs", num_train_epochs},
      {"save_steps", save_steps},
      {"stateful_callbacks", callbacks},
      {"total_flos", total_flos},
      {"train_batch_size", train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr}};
  return json_text(json, 2) + "\n";
}

TrainerState TrainerState::read(const std::string& file) {
  const SortedJson json =
      SortedJson::parse(without_non_numbers(std::string(bounded_json(read_file(file), file))), nullptr, false);
  if (json.is_discarded()) throw CheckpointError("'" + file + "' is not JSON; resume from another checkpoint", file);
  TrainerState s;
  try {
    s.global_step = json.at("global_step");
    s.max_steps = json.at("max_steps");
    s.epoch = json.at("epoch");
    s.log_history = json.at("log_history");
    s.num_input_tokens_seen = json.value("num_input_tokens_seen", std::int64_t{0});
    s.total_flos = json.value("total_flos", 0.0);
    if (!json.at("best_metric").is_null()) {
      s.best_metric = json["best_metric"].get<double>();
      if (json.contains("best_global_step") && json["best_global_step"].is_number())
        s.best_global_step = json["best_global_step"];
      if (!json.at("best_model_checkpoint").is_null()) s.best_model_checkpoint = json["best_model_checkpoint"];
    }
    const auto attribute = [&](const char* callback, const char* name, auto fallback) {
      const SortedJson::json_pointer path(fmt::format("/stateful_callbacks/{}/attributes/{}", callback, name));
      return json.value(path, fallback);
    };
    s.evaluations_without_improvement = attribute(kStopper, "early_stopping_patience_counter", std::int64_t{0});
    const auto meter = [&](const std::string& name) {
      return LossMeter{attribute(kRun, (name + "_sum").c_str(), 0.0),
                       attribute(kRun, (name + "_steps").c_str(), std::int64_t{0})};
    };
    s.loss = meter("loss");
    s.epoch_loss = meter("epoch_loss");
    s.window = {meter("log_loss"), attribute(kRun, "log_seconds", 0.0), attribute(kRun, "log_tokens", std::int64_t{0}),
                MetricMeans::from_json(attribute(kRun, "log_metrics", SortedJson::array()))};
    s.recent_losses = RecentLosses(attribute(kRun, "recent_losses", std::vector<double>()));
    s.has_meters = s.loss.steps > 0;
    if (!s.has_meters && s.loss.sum != 0) s.loss.steps = s.global_step;
    s.loss_scale = attribute(kRun, "loss_scale", 0.0);
    s.steps_at_loss_scale = attribute(kRun, "steps_at_loss_scale", std::int64_t{0});
    s.skipped_steps = attribute(kRun, "skipped_steps", std::int64_t{0});
    s.rows_per_step = attribute(kRun, "rows_per_step", std::int64_t{0});
    s.steps_per_epoch = attribute(kRun, "steps_per_epoch", std::int64_t{0});
    if (s.rows_per_step > 0 && s.steps_per_epoch < 1) throw std::domain_error("steps_per_epoch must be positive");
    s.evaluation_due = attribute(kRun, "evaluation_due", false);
    s.schedule = attribute(kRun, "schedule", std::string("{}"));
  } catch (const std::exception& e) {
    throw CheckpointError(
        "'" + file + "' is not a trainer_state.json (" + plain_reason(e) + "); resume from another checkpoint", file);
  }
  return s;
}

std::string python_text(const nlohmann::ordered_json& row) {
  std::string text = "{";
  for (const auto& [key, value] : row.items()) {
    text += fmt::format("{}'{}': ", text.size() > 1 ? ", " : "", key);
    if (value.is_number_float()) {
      text += number_text(value.get<double>());
    } else if (value.is_string()) {
      text += "'" + value.get<std::string>() + "'";
    } else {
      text += json_text(value);
    }
  }
  return text + "}";
}

}  // namespace tessera::train
