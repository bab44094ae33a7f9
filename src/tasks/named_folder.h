#pragma once
// Folders with names, as flags give them: "math=out/math", or "out/math" alone, which is named "math".
#include <string>
#include <vector>

namespace tessera::tasks {

struct NamedFolder {
  std::string name, folder;
};

/// ConfigError for a name that is empty, holds a dot or a slash, or comes twice; `flag` says where.
std::vector<NamedFolder> named_folders(const std::vector<std::string>& words, const std::string& flag);

}  // namespace tessera::tasks
