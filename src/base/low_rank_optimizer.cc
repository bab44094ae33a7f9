#include "base/low_rank_optimizer.h"

#include <algorithm>
#include <regex>

#include "tessera/base/error.h"

namespace tessera {

bool is_low_rank_target(const std::vector<std::string>& targets, const std::string& module) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& word) {
    return word == "all-linear" || word == "all_linear" || module.find(word) != std::string::npos ||
           std::regex_match(module, std::regex(word));
  });
}

void check_low_rank_targets(const std::vector<std::string>& targets, const std::string& optim) {
  const auto fail = [](const std::string& what) { throw ConfigError(what, "optim_target_modules"); };
  if (targets.empty())
    fail("--optim " + optim + " needs --optim_target_modules: all-linear, or parts of the names of linear layers");
  for (const auto& word : targets) try {
      (void)std::regex(word);
    } catch (const std::regex_error& e) {
      fail("--optim_target_modules '" + word + "' is no regular expression: " + e.what());
    }
}

}  // namespace tessera
