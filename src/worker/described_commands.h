#pragma once
// What every command's table of options says, for completions and manual pages.
#include <string>
#include <vector>

namespace tessera::worker {

struct DescribedFlag {
  std::vector<std::string> names;  // "--learning_rate"; of an argument "MODEL"
  std::string help, group, value, default_value;
  std::vector<std::string> choices;
  bool is_argument = false, is_required = false;
  bool works = true;  // false: accepted without effect, or refused
};

struct DescribedCommand {
  std::string name, help;               // "config default", and its line in `tessera --help`
  std::string summary, usage, example;  // example: without the command; may be empty
  std::vector<DescribedFlag> flags;
};

/// In the order of `tessera --help`, subcommands behind their command.
std::vector<DescribedCommand> described_commands();

}  // namespace tessera::worker
