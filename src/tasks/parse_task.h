#pragma once
#include <string>
#include <vector>

#include "config/options.h"

namespace tessera::tasks {

/// A training task's command line: keys of PEFT's methods are gathered (with_method_keys), and of its file of flags
/// those of `tessera launch` are passed over where that has read them and started this rank.
config::ParseResult parse_task(config::OptionTable& table, const std::vector<std::string>& args,
                               config::Problems& problems);

}  // namespace tessera::tasks
