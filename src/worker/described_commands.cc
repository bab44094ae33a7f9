#include "worker/described_commands.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.h"
#include "worker/tasks.h"

namespace tessera::worker {
namespace {

using HelpJson = nlohmann::json;
constexpr const char* kAsJson = "--help=json";

DescribedFlag described_flag(const HelpJson& o) {
  return {.names = o.at("names"),
          .help = o.at("help"),
          .group = o.at("group"),
          .value = o.at("value"),
          .default_value = o.at("default"),
          .choices = o.at("choices"),
          .is_argument = o.at("positional"),
          .is_required = o.at("required"),
          .works = o.at("effect") == "works"};
}

template <class Function>
DescribedCommand described(const std::string& name, const std::string& help, Function&& function,
                           const std::vector<std::string>& args) {
  std::ostringstream out, err;
  function(args, out, err);
  const HelpJson json = HelpJson::parse(out.str());
  DescribedCommand command{.name = name,
                           .help = help,
                           .summary = json.at("summary"),
                           .usage = json.at("usage"),
                           .example = json.at("example"),
                           .flags = {}};
  for (const HelpJson& option : json.at("options")) command.flags.push_back(described_flag(option));
  return command;
}

}  // namespace

std::vector<DescribedCommand> described_commands() {
  std::vector<DescribedCommand> all;
  for (const cli::Command& command : cli::commands()) {
    const std::string name = command.name;
    if (command.function != nullptr) {
      all.push_back(described(name, command.help, command.function, {kAsJson}));
      if (name != "config") continue;
      all.push_back(
          described("config default", "write a config file without questions", command.function, {"default", kAsJson}));
      all.push_back(described("config update", "renew an old config file", command.function, {"update", kAsJson}));
      continue;
    }
    for (const Task& task : tasks())
      if (task.name == name) all.push_back(described(name, command.help, task.function, {kAsJson}));
  }
  return all;
}

}  // namespace tessera::worker
