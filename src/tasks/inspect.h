#pragma once
// `tessera inspect`: says what a checkpoint, model, adapter or weight file holds, and whether it is whole.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int inspect(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
