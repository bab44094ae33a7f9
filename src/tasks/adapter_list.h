#pragma once
// --adapters FILE of `tessera sft`: adapters that train side by side.
#include <iosfwd>
#include <string>
#include <vector>

#include "tasks/sft.h"

namespace tessera::tasks {

void add_adapter_list_flag(config::OptionTable& table, SftOptions& options);

struct ListedAdapter {
  std::string name;
  std::vector<std::string> flags;  // "--learning_rate=0.001"
};

/// A YAML or JSON mapping from names to the flags of `tessera sft` that are the adapter's own. ConfigError names the
/// file, the line and what is wrong: a name that is given twice or can be none, a flag that is the whole run's.
std::vector<ListedAdapter> read_adapter_list(const std::string& file);

/// The options of each adapter's own run: the command line, with the file's flags behind it. ConfigError, with the
/// adapter's name, for what is wrong with them and for what several adapters cannot do.
SftOptions parse_side_by_side(const std::vector<std::string>& args, const std::string& file, std::ostream& out);

/// One run's command line, whether or not it is one of several (tasks/sft_options.cc).
std::optional<SftOptions> parse_one_sft(const std::vector<std::string>& args, std::ostream& out);

}  // namespace tessera::tasks
