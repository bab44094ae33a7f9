#pragma once
// Which modules get an adapter: PEFT's rules (BaseTuner._check_target_module_exists, check_target_module_exists).
#include <string>
#include <utility>
#include <vector>

#include "base/dotted_name.h"
#include "base/pattern.h"
#include "peft/config.h"

namespace tessera::nn {
class HookedModule;
}

namespace tessera::peft {

/// "all-linear" in any case, in either field.
bool wants_all_linear(const PeftConfig& config);

/// True for the name of a parameter or module inside one of modules_to_save.
bool is_saved(const std::string& name, const PeftConfig& config);

/// True for the full name of a module that the config targets. ConfigError for a bad regular expression.
bool is_target(const std::string& name, const PeftConfig& config);

/// A line for each name of a list of targets that matches no module which takes an adapter.
std::vector<std::string> notes_on_targets(const nn::HookedModule& model, const PeftConfig& config);

/// The value of the first pattern (a regular expression, at the end of the name after a dot or the whole of it) that
/// matches, or fallback.
template <class Value>
Value by_pattern(const std::string& name, const std::vector<std::pair<std::string, Value>>& patterns, Value fallback,
                 const char* key) {
  for (const auto& [pattern, value] : patterns)
    if (Pattern("(?:.*\\.)?(?:" + pattern + ")", key).matches(name)) return value;
  return fallback;
}

/// The same for keys that PEFT matches by re.match(rf".*\.{key}$", name), where an alternative reaches from the dot on
/// or to the end; then for a key that is the name.
template <class Value>
Value by_dotted_end(const std::string& name, const std::vector<std::pair<std::string, Value>>& patterns, Value fallback,
                    const char* key) {
  for (const auto& [pattern, value] : patterns)
    if (Pattern("(?:.*\\." + pattern + "$)(?s:.*)", key).matches(name)) return value;
  for (const auto& [known, value] : patterns)
    if (known == name) return value;
  return fallback;
}

}  // namespace tessera::peft
