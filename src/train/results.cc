#include "train/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"

namespace tessera::train {
namespace {

using SortedJson = nlohmann::json;

/// The newest row with this key, of this step where one is given; null: none.
const SortedJson* newest_row(const SortedJson& history, const char* key, std::int64_t step) {
  for (auto row = history.rbegin(); row != history.rend(); ++row)
    if (row->contains(key) && (step < 0 || row->value("step", std::int64_t{-1}) == step)) return &*row;
  return nullptr;
}

SortedJson read_results(const std::string& file) {
  if (!is_there(file)) return SortedJson::object();
  const std::string text = read_file(file);
  SortedJson found = SortedJson::parse(bounded_json(text, file), nullptr, false);
  return found.is_object() ? found : SortedJson::object();
}

/// hours:minutes:seconds.hundredths, as Python prints a timedelta.
std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto hundredths = static_cast<int>(std::abs(seconds - static_cast<double>(whole)) * 100);
  const std::int64_t days = whole / 86400, rest = whole % 86400;
  const std::string before = days == 0 ? "" : fmt::format("{} day{}, ", days, days == 1 ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}.{:02}", before, rest / 3600, rest / 60 % 60, rest % 60, hundredths);
}

std::string value_text(const std::string& key, const SortedJson& value) {
  if (value.is_null()) return "nan";
  if (!value.is_number()) return json_text(value);
  const double number = value.get<double>();
  if (key.find("_runtime") != std::string::npos) return time_text(number);
  if (key == "total_flos") return fmt::format("{}GF", static_cast<std::int64_t>(number / (1 << 30)));
  return value.is_number_float() ? json_text(SortedJson(std::round(number * 1e4) / 1e4)) : json_text(value);
}

}  // namespace

SortedJson train_results(const TrainerState& state, std::int64_t samples) {
  SortedJson out = {{"train_samples", samples}};
  const SortedJson* row = newest_row(state.log_history, "train_runtime", -1);
  for (const char* key : {"epoch", "train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second"})
    if (row && row->contains(key)) out[key] = (*row)[key];
  if (state.total_flos > 0) out["total_flos"] = state.total_flos;
  return out;
}

SortedJson eval_results(const TrainerState& state, std::int64_t samples, std::int64_t step) {
  const SortedJson* row = newest_row(state.log_history, "eval_loss", step);
  if (!row) return nullptr;
  SortedJson out = *row;
  out.erase("step");
  out["eval_samples"] = samples;
  return out;
}

void save_metrics(const std::string& folder, const std::string& split, const SortedJson& metrics) {
  const auto write = [&](const std::string& name, const SortedJson& values) {
    write_file_atomically(folder + "/" + name + "_results.json", json_text(values, 4, /*is_ascii=*/true));
  };
  write(split, metrics);
  SortedJson all = read_results(folder + "/all_results.json");
  all.update(metrics);
  write("all", all);
}

std::string metrics_block(const std::string& split, const SortedJson& metrics) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::size_t key_width = 0, value_width = 0;
  for (const auto& [key, value] : metrics.items()) {
    lines.emplace_back(key, value_text(key, value));
    key_width = std::max(key_width, key.size());
    value_width = std::max(value_width, lines.back().second.size());
  }
  std::string text = fmt::format("***** {} metrics *****\n", split);
  for (const auto& [key, value] : lines) text += fmt::format("  {:<{}} = {:>{}}\n", key, key_width, value, value_width);
  return text;
}

}  // namespace tessera::train
