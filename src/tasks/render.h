#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

/// `tessera render`: conversations as a chat template writes them, and rows of training data as the model reads them.
int render(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
