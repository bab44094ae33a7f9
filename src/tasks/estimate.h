#pragma once
// `tessera estimate` for a folder with a config.json alone: the modules, which need libtorch, say the shapes.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int estimate(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
