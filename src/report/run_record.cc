#include "report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "base/python_json.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;
using RowJson = nlohmann::ordered_json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Of rows, but no curve: where a row stands, and how long an evaluation took.
constexpr const char* kNoSeries[] = {"step",
                                     "epoch",
                                     "time",
                                     "total_flos",
                                     "num_tokens",
                                     "eval_num_tokens",
                                     "num_input_tokens_seen",
                                     "train_loss_exact",
                                     "step_seconds",
                                     "eval_runtime",
                                     "eval_samples_per_second",
                                     "eval_steps_per_second"};
// Keys of a run's last row, and what they are called.
constexpr std::pair<const char*, const char*> kPhases[] = {{"forward_and_backward_seconds", "forward and backward"},
                                                           {"update_seconds", "update"},
                                                           {"evaluation_seconds", "evaluation"},
                                                           {"saving_seconds", "saving"}};
constexpr std::pair<const char*, const char*> kMeasured[] = {{"measured_own_mib", "own memory"},
                                                             {"measured_shared_mib", "shared between ranks"},
                                                             {"measured_files_mib", "mapped files"}};

bool is_series(const std::string& key) {
  return std::none_of(std::begin(kNoSeries), std::end(kNoSeries), [&](const char* other) { return key == other; });
}

double number_or_nan(const RowJson& value) {
  return value.is_number() ? value.get<double>() : kNaN;
}

RowJson parsed_json(const std::string& text, const std::string& file) {
  RowJson json = RowJson::parse(without_non_numbers(text), nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw DataError("'" + file + "' is not a JSON object; restore it, or remove it", file);
  return json;
}

/// Text of a setting, as one would type it.
std::string setting_text(const RowJson& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

class RunReader {
 public:
  explicit RunReader(RunRecord& run) : run_(run) {}

  /// A row of metrics.jsonl or of log_history, in the order in which they were written.
  void add(const RowJson& row) {
    if (!row.is_object()) return;
    const std::int64_t step = row.value("step", std::int64_t{0});
    if (step < run_.last_step) forget_after(step);  // the run began anew, or went on from a checkpoint
    run_.last_step = step;
    if (row.contains("epoch") && row["epoch"].is_number()) run_.epoch = row["epoch"].get<double>();
    if (row.contains("samples")) return add_samples(step, row["samples"]);
    if (row.contains("train_runtime")) return add_summary(row);
    run_.summary.clear();
    for (const auto& [key, value] : row.items())
      if (is_series(key) && (value.is_number() || value.is_null())) run_.series[key][step] = number_or_nan(value);
    if (row.contains("train_loss_exact")) run_.series["loss"][step] = number_or_nan(row["train_loss_exact"]);
    add_seconds(step, row);
  }

  void add_phases(double preparation_seconds) {
    if (run_.phase_seconds.empty()) derive_phases();
    if (preparation_seconds > 0)
      run_.phase_seconds.emplace(run_.phase_seconds.begin(), "preparation", preparation_seconds);
  }

 private:
  /// Where no last row said how long they took.
  void derive_phases() {
    double evaluation = 0, training = 0;
    for (const auto& [step, seconds] : evaluation_seconds_) evaluation += seconds;
    for (const auto& [step, seconds] : training_seconds_) training += seconds;
    if (run_.summary.contains("train_runtime")) training = std::max(0.0, run_.summary["train_runtime"] - evaluation);
    if (training > 0) run_.phase_seconds.emplace_back("training", training);
    if (evaluation > 0) run_.phase_seconds.emplace_back("evaluation", evaluation);
  }

  void forget_after(std::int64_t step) {
    const auto cut = [&](auto& by_step) { by_step.erase(by_step.lower_bound(step), by_step.end()); };
    for (auto& [name, values] : run_.series) cut(values);
    std::erase_if(run_.series, [](const auto& named) { return named.second.empty(); });
    for (auto* seconds : {&training_seconds_, &evaluation_seconds_}) cut(*seconds);
    cut(run_.samples);
    run_.summary.clear();
    run_.phase_seconds.clear();
  }

  void add_samples(std::int64_t step, const RowJson& samples) {
    auto& all = run_.samples[step];
    all.clear();
    for (const auto& s : samples)
      all.push_back({s.value("prompt", std::string()), s.value("completion", std::string()),
                     s.value("generated", std::string())});
  }

  void add_summary(const RowJson& row) {
    run_.phase_seconds.clear();
    run_.measured_mib.clear();
    run_.measured_device_mib.clear();
    for (const auto& [key, value] : row.items())
      if (key != "step" && key != "time" && value.is_number()) run_.summary[key] = value.get<double>();
    for (const auto& [key, name] : kPhases)
      if (run_.summary.contains(key)) run_.phase_seconds.emplace_back(name, run_.summary[key]);
    for (const auto& [key, name] : kMeasured)
      if (run_.summary.contains(key)) run_.measured_mib.emplace_back(name, run_.summary[key]);
    const auto add_whole = [&](NamedNumbers& parts, const char* key) {
      if (parts.empty() && run_.summary.contains(key)) parts.emplace_back("all", run_.summary[key]);
    };
    add_whole(run_.measured_mib, "measured_memory_mib");
    add_whole(run_.planned_mib, "planned_memory_mib");
    add_whole(run_.measured_device_mib, "measured_device_mib");
    add_whole(run_.planned_device_mib, "planned_device_mib");
  }

  void add_seconds(std::int64_t step, const RowJson& row) {
    if (row.contains("eval_runtime")) evaluation_seconds_[step] = number_or_nan(row["eval_runtime"]);
    if (!row.contains("step_seconds")) return;
    const std::int64_t before = training_seconds_.empty() ? 0 : training_seconds_.rbegin()->first;
    training_seconds_[step] = number_or_nan(row["step_seconds"]) * static_cast<double>(step - before);
  }

  RunRecord& run_;
  std::map<std::int64_t, double> training_seconds_, evaluation_seconds_;  // by the step of their row
};

/// The rows, without a last line that a killed run left half written.
std::vector<RowJson> metrics_rows(const std::string& path) {
  std::vector<RowJson> rows;
  const std::string text = read_text_file(path);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    RowJson row = RowJson::parse(without_non_numbers(line), nullptr, false);
    if (row.is_discarded() && end == text.size()) break;
    if (row.is_discarded())
      throw DataError(fmt::format("'{}', line {}: expected a JSON object; restore or remove the line", path, number),
                      path, number);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The run's own, or that of its newest checkpoint.
std::string state_file(const std::string& folder) {
  const std::string own = folder + "/trainer_state.json";
  if (is_there(own)) return own;
  std::string newest;
  std::int64_t newest_step = -1;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), file = entry.path().string() + "/trainer_state.json";
    if (!name.starts_with("checkpoint-") || !is_there(file)) continue;
    const std::int64_t step = std::atoll(name.c_str() + std::string("checkpoint-").size());
    if (step > newest_step) std::tie(newest_step, newest) = std::tie(step, file);
  }
  return newest;
}

struct Settings {
  std::string metrics_file;  // empty: in its usual place
  double preparation_seconds = 0;
};

/// Of run.json.
Settings add_settings(const std::string& file, RunRecord& run) {
  const RowJson json = parsed_json(read_text_file(file), file);
  run.max_steps = json.value("max_steps", std::int64_t{0});
  if (json.contains("command")) run.configuration.emplace_back("command", setting_text(json["command"]));
  for (const char* section : {"flags", "launch"})
    if (json.contains(section))
      for (const auto& [key, value] : json[section].items()) run.configuration.emplace_back(key, setting_text(value));
  for (const auto& [section, parts] :
       {std::pair{"planned_memory_mib", &run.planned_mib}, std::pair{"planned_device_mib", &run.planned_device_mib}})
    if (json.contains(section))
      for (const auto& [key, value] : json[section].items()) parts->emplace_back(key, number_or_nan(value));
  return {json.value("metrics_file", std::string()), json.value("preparation_seconds", 0.0)};
}

}  // namespace

std::string measured_by(const std::string& series_name) {
  return series_name.starts_with("eval_") ? series_name.substr(5) : series_name;
}

RunRecord read_run(const std::string& folder, const std::string& name) {
  if (!fs::is_directory(folder))
    throw DataError("'" + folder + "' is not a folder; name the output_dir of a run", folder);
  RunRecord run;
  run.name = name;
  const std::string settings_file = folder + "/run.json";
  try {
    const Settings settings = is_there(settings_file) ? add_settings(settings_file, run) : Settings();
    std::string metrics = settings.metrics_file;
    if (metrics.empty() || !is_there(metrics)) metrics = folder + "/metrics.jsonl";
    const std::string state = state_file(folder);
    if (!is_there(metrics) && state.empty())
      throw DataError("'" + folder + "' holds no metrics.jsonl and no trainer_state.json: it is not a run's output_dir",
                      folder);
    const auto rows = is_there(metrics) ? metrics_rows(metrics) : std::vector<RowJson>();
    RunReader reader(run);
    // What metrics.jsonl lacks: all, or the rows before a checkpoint of another folder.
    const std::int64_t first =
        rows.empty() ? std::numeric_limits<std::int64_t>::max() : rows[0].value("step", std::int64_t{0});
    if (!state.empty() && first > 0) {
      const RowJson json = parsed_json(read_text_file(state), state);
      if (run.max_steps == 0) run.max_steps = json.value("max_steps", std::int64_t{0});
      for (const auto& row : json.value("log_history", RowJson::array()))
        if (row.is_object() && row.value("step", std::int64_t{0}) < first) reader.add(row);
    }
    for (const auto& row : rows) reader.add(row);
    reader.add_phases(settings.preparation_seconds);
  } catch (const nlohmann::json::exception& e) {
    throw DataError("a file of '" + folder + "' is not a run's (" + plain_reason(e) + "); restore or remove it",
                    folder);
  }
  return run;
}

}  // namespace tessera::report
