#pragma once
// The functions behind the tasks of src/cli/commands.cc: what needs libtorch.
#include <vector>

#include "cli/commands.h"

namespace tessera::worker {

struct Task {
  const char* name;
  cli::Function function;
};

const std::vector<Task>& tasks();

}  // namespace tessera::worker
