#pragma once
// `tessera export`: a checkpoint becomes a Hugging Face or PEFT folder. Under launch no rank holds the whole model.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

int export_checkpoint(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
