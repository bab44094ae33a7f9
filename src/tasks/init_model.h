#pragma once
// `tessera init-model`: random weights for a config.json, as the family's training starts from them.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int init_model(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
