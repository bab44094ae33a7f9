#pragma once
// `tessera combine`: several LoRA adapters become one, as PEFT's add_weighted_adapter makes it (peft/combine).
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

/// One process, without the base model, a layer at a time.
int combine(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
