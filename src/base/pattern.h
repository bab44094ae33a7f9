#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// A regular expression of names, written as for Python's `re` (by PCRE2). Thread-safe; copies are cheap.
class Pattern {
 public:
  /// ConfigError with this key that shows the expression and what is wrong with it.
  Pattern(const std::string& expression, const std::string& key);

  /// Python's fullmatch(). ConfigError where the expression needs too many steps.
  bool matches(std::string_view name) const { return match(name, nullptr).has_value(); }
  /// What the group (?<group>...) took, "" where it took no part; nothing where the name does not match.
  std::optional<std::string> group(std::string_view name, const char* group) const { return match(name, group); }

 private:
  struct Code;
  std::optional<std::string> match(std::string_view name, const char* group) const;
  std::shared_ptr<const Code> code_;
};

}  // namespace tessera
