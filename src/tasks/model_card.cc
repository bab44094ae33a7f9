#include "tasks/model_card.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "hub/name.h"

namespace tessera::tasks {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMark = "<!-- written by tessera at the end of the run; without this line it is left alone -->";

/// An empty object where there is no such file.
Json read_object(const std::string& file) {
  if (!is_there(file)) return Json::object();
  Json out = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  return out.is_object() ? out : Json::object();
}

std::string words_of_value(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

/// The flag's value where it is a name on the Hub, not a path here.
std::string hub_name(const Json& flags, const char* flag, hub::Kind kind) {
  const std::string value = flags.contains(flag) ? words_of_value(flags[flag]) : "";
  const auto name = hub::parse_name(kind, value);
  return name && !is_there(value) ? name->id : "";
}

/// The last value of each number that was logged, in the order of their first.
Json last_numbers(const Json& state) {
  Json out = Json::object();
  if (!state.contains("log_history") || !state["log_history"].is_array()) return out;
  for (const auto& row : state["log_history"])
    for (const auto& [key, value] : row.items())
      if (value.is_number() && key != "step" && key != "learning_rate" && key != "grad_norm") out[key] = value;
  return out;
}

std::string front_matter(const std::string& base, const std::string& data, const std::string& command,
                         bool is_adapter) {
  std::string out = "---\n";
  if (!base.empty()) out += "base_model: " + base + "\n";
  out += fmt::format("library_name: {}\n", is_adapter ? "peft" : "transformers");
  if (!data.empty()) out += "datasets:\n- " + data + "\n";
  out += "tags:\n- tessera\n";
  if (!command.empty()) out += "- " + command + "\n";
  return out + "---\n";
}

}  // namespace

void write_model_card(const std::string& folder, const std::string& name) {
  const std::string file = folder + "/README.md";
  if (is_there(file) && read_file(file).find(kMark) == std::string::npos) return;
  const Json run = read_object(folder + "/run.json"), flags = run.value("flags", Json::object());
  const std::string command = run.contains("command") ? words_of_value(run["command"]) : "";
  const std::string base = hub_name(flags, "model_name_or_path", hub::Kind::kModel);
  const std::string data = hub_name(flags, "dataset_name", hub::Kind::kDataset);
  const auto space = command.rfind(' ');
  std::string card = front_matter(base, data, space == std::string::npos ? "" : command.substr(space + 1),
                                  is_there(folder + "/adapter_config.json"));
  card += fmt::format("{}\n\n# {}\n\n", kMark, name);
  card += fmt::format("Trained with `{}`{}{}.\n\n", command.empty() ? "tessera" : command,
                      base.empty() ? "" : " from " + base, data.empty() ? "" : " on " + data);
  if (const Json numbers = last_numbers(read_object(folder + "/trainer_state.json")); !numbers.empty()) {
    card += "| at the end of the run | |\n|---|---|\n";
    for (const auto& [key, value] : numbers.items()) card += fmt::format("| {} | {} |\n", key, json_text(value));
    card += "\n";
  }
  if (!flags.empty()) {
    card += "| flag | value |\n|---|---|\n";
    for (const auto& [key, value] : flags.items())
      if (!words_of_value(value).empty() && words_of_value(value).find('/') != 0)
        card += fmt::format("| {} | {} |\n", key, words_of_value(value));
  }
  write_file_atomically(file, card);
}

}  // namespace tessera::tasks
