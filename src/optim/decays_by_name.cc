#include <cctype>
#include <string>

#include "tessera/optim/factory.h"

namespace tessera::optim {

// Trainer's patterns: bias, layernorm, rmsnorm, (?:^|\.)norm(?:$|\.), _norm(?:$|\.), searched in the lower-case name.
bool decays_by_name(const std::string& parameter) {
  std::string name = parameter;
  for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* part : {"bias", "layernorm", "rmsnorm"})
    if (name.find(part) != std::string::npos) return false;
  for (auto at = name.find("norm"); at != std::string::npos; at = name.find("norm", at + 1)) {
    const bool begins = at == 0 || name[at - 1] == '.' || name[at - 1] == '_';
    const bool ends = at + 4 == name.size() || name[at + 4] == '.';
    if (begins && ends) return false;
  }
  return true;
}

}  // namespace tessera::optim
