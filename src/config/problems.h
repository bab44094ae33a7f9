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

/// Of a command's words alone: all ranks that were started with them find it.
class UsageError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

class Problems {
 public:
  /// What a problem depends on: the command's words alone, or also on what may differ between the hosts of a job, as
  /// files, the environment and devices.
  enum class Source { kWords, kHost };

  /// `key`: the flag or key at fault. Of one key the first problem is kept: others may only follow from it.
  void add(std::string message, std::string key = {});
  /// add() unless `condition`.
  void require(bool condition, std::string message, std::string key) {
    if (!condition) add(std::move(message), std::move(key));
  }
  /// Runs a check that throws ConfigError.
  template <class Check>
  void attempt(Check&& check) {
    attempt(source_, check);
  }
  template <class Check>
  void attempt(Source source, Check&& check) {
    const Source before = std::exchange(source_, source);
    try {
      check();
    } catch (const ConfigError& e) {
      add(e.what(), e.key);
    }
    source_ = before;
  }
  /// Of the problems from now on; at first kWords.
  void set_source(Source source) { source_ = source; }
  /// Where the reader finds more; ends the message.
  void set_hint(std::string hint) { hint_ = std::move(hint); }
  bool empty() const { return found_.empty(); }
  /// Nothing where there are none; else one ConfigError, of several with a line for each. A UsageError where the words
  /// alone have one: then no rank can begin.
  void throw_all() const;

 private:
  struct Problem {
    std::string message, key;
    Source source;
  };
  std::vector<Problem> found_;
  Source source_ = Source::kWords;
  std::string hint_;
};

}  // namespace tessera::config
