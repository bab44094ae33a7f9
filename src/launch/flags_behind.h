#pragma once
// Flags of launch that stand behind a training task, as TRL's commands take them: `tessera sft --num_processes 4 ...`,
// and in the task's file of flags `num_processes: 4`.
#include <string>
#include <vector>

#include "launch/launch.h"

namespace tessera::launch {

/// A launcher's words (LAUNCH FLAGS TASK FLAGS) with those flags in front, where what stands there already is stronger,
/// and what the command line says than what the file says. Other words as they are. ConfigError for a flag without its
/// value.
std::vector<std::string> with_flags_in_front(const std::vector<std::string>& words, const Tasks& tasks);

/// Of a training task's words: whether flags of launch are among them or in their file, and help is not asked for. Not
/// in a process that somebody has started as one of several.
bool asks_for_launch(const std::vector<std::string>& args);

}  // namespace tessera::launch
