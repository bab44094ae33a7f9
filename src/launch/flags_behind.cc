#include "launch/flags_behind.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/rank_environment.h"
#include "config/document.h"
#include "config/options.h"
#include "config/other_spellings.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Words = std::vector<std::string>;

/// Of both, as transformers' TrainingArguments have them: behind a task they are the task's.
constexpr std::array<std::string_view, 4> kOfTheTask = {"debug", "use_cpu", "fsdp_min_num_params",
                                                        "fsdp_transformer_layer_cls_to_wrap"};

bool is_launchers(const std::string& name) {
  return config::is_launch_flag(name) && std::find(kOfTheTask.begin(), kOfTheTask.end(), name) == kOfTheTask.end();
}

/// The file of flags that a task's words name; "": none. Behind a flag such a name is taken for the flag's value.
std::string flag_file(const Words& args) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string before = i == 0 ? "" : args[i - 1];
    if (args[i].starts_with("--config=")) return args[i].substr(std::string_view("--config=").size());
    if (before == "--config") return args[i];
    const bool is_value = before.starts_with("--") && before.find('=') == std::string::npos;
    if (config::is_flag_file(args[i]) && !is_value && !args[i].starts_with("-")) return args[i];
  }
  return "";
}

std::string text_of(const config::Node& value) {
  if (value.kind == config::Node::Kind::kScalar) return value.text;
  if (value.kind == config::Node::Kind::kMap) return config::json_of(value);  // which no flag takes
  std::string text;
  for (const auto& item : value.items) text += (text.empty() ? "" : ",") + item.text;
  return text;
}

/// What is wrong with the file, the task says.
Words flags_of_file(const std::string& path) {
  Words flags;
  if (path.empty()) return flags;
  try {
    for (const auto& [key, line, value] : config::read_document(path).entries) {
      if (key == "compute_environment") return {};  // the launcher's own file, which is refused as a file of flags
      if (value.kind != config::Node::Kind::kNull && is_launchers(key))
        flags.push_back("--" + key + "=" + text_of(value));
    }
  } catch (const Error&) {
  }
  return flags;
}

/// Takes them out of the task's words.
Words take_flags(Words& args) {
  LaunchOptions options;
  config::AccelerateInput accelerate;
  Words flags = flags_of_file(flag_file(args));
  const Words said = launch_table(options, accelerate).take_flags(args, is_launchers);
  flags.insert(flags.end(), said.begin(), said.end());
  return flags;
}

bool is_help(const std::string& word) {
  return word == "-h" || word == "--help" || word == "--help=json";
}

}  // namespace

std::vector<std::string> with_flags_in_front(const std::vector<std::string>& words, const Tasks& tasks) {
  LaunchOptions options;
  config::AccelerateInput accelerate;
  config::Problems unused;
  (void)launch_table(options, accelerate).parse(words, unused);
  const Words& command = options.command;
  const auto& training = tasks.training;
  if (command.empty() || std::find(training.begin(), training.end(), command[0]) == training.end()) return words;
  Words args(command.begin() + 1, command.end());
  Words all = take_flags(args);
  all.insert(all.end(), words.begin(), words.end() - static_cast<std::ptrdiff_t>(command.size()));
  all.push_back(command[0]);
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

bool asks_for_launch(const std::vector<std::string>& args) {
  if (is_one_of_several() || std::any_of(args.begin(), args.end(), is_help)) return false;
  Words left = args;
  return !take_flags(left).empty();
}

}  // namespace tessera::launch
