#pragma once
// What is wrong with a command line, collected, so that the user is told everything at once and before anything is
// loaded.
//
//   Problems problems;
//   if (table.parse(args, problems) == ParseResult::kHelp) ...
//   problems.require(o.epochs > 0, "--epochs must be at least 1", "epochs");
//   problems.attempt([&] { check_file(o.config_file); });
//   problems.throw_all();
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::config {

class Problems {
 public:
  /// `key`: the flag or key at fault. Of one key the first problem is kept: others may only follow from it.
  void add(std::string message, std::string key = {});
  /// add() unless `condition`.
  void require(bool condition, std::string message, std::string key) {
    if (!condition) add(std::move(message), std::move(key));
  }
  /// Runs a check that throws ConfigError.
  template <class Check>
  void attempt(Check&& check) {
    try {
      check();
    } catch (const ConfigError& e) {
      add(e.what(), e.key);
    }
  }
  /// Where the reader finds more; ends the message.
  void set_hint(std::string hint) { hint_ = std::move(hint); }
  bool empty() const { return found_.empty(); }
  /// Nothing where there are none; else one ConfigError, of several with a line for each.
  void throw_all() const;

 private:
  struct Problem {
    std::string message, key;
  };
  std::vector<Problem> found_;
  std::string hint_;
};

}  // namespace tessera::config
