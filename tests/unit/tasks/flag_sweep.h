#pragma once
// Every flag of a task's table, held against what it changes: a flag that works has a case whose run differs from the
// run without it; a flag without effect is noted; a refused flag is refused by name. A flag without a case fails the
// test: a new flag needs one more row.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "config/options.h"
#include "support/temp_folder.h"
#include "tasks/init_model.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

using Words = std::vector<std::string>;

struct FlagCase {
  std::string flag;  // any of its spellings
  Words words;       // what follows it
  Words with = {};   // what stands before it, in both runs
};

/// A flag whose work nobody sees in what a run says and writes: time, memory, or another machine.
struct Unseen {
  std::string flag, what;
};

/// A task's function with its files: what a run says and writes, as a text without times.
class SweptTask {
 public:
  using Function = std::function<int(const Words&, std::ostream&, std::ostream&)>;
  /// base: what every run is given. out: the folder that a run writes; it is removed before each.
  SweptTask(Function task, Words base, std::string out)
      : task_(std::move(task)), base_(std::move(base)), out_(std::move(out)) {
    ::setenv("HF_HUB_OFFLINE", "1", 1);  // --push_to_hub, and names that are no folders
  }

  const std::string& run(const Words& flags) {
    const auto [it, is_new] = seen_.try_emplace(flags);
    if (is_new) it->second = observe(flags);
    return it->second;
  }
  Words with_base(const Words& flags) const {
    Words all = base_;
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }

 private:
  std::string observe(const Words& flags) {
    std::filesystem::remove_all(out_);
    std::ostringstream out, err;
    std::string seen;
    try {
      seen = "exit code " + std::to_string(task_(with_base(flags), out, err)) + "\n";
    } catch (const Error& e) {
      seen = std::string("error: ") + e.what() + "\n";
    }
    seen += without_times(out.str()) + (err.str().empty() ? "" : "spoke on standard error\n");
    for (const auto& path : files()) seen += describe(path);
    return seen;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> all;
    if (!std::filesystem::exists(out_)) return all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out_)) {
      if (entry.is_regular_file()) all.push_back(entry.path().string());
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  std::string describe(const std::string& path) const {
    const std::string text = read_file(path), name = path.substr(out_.size());
    const bool is_dated = name.find("tfevents") != std::string::npos;
    if (is_dated) return "TensorBoard\n";
    if (name.ends_with("/manifest.json")) return name + "\n";  // sums over files that hold times
    if (name.ends_with("/run.json")) return "";                // it repeats the flags
    const bool is_text = name.ends_with(".json") || name.ends_with(".jsonl");
    return without_times(name) + " " + std::to_string(std::hash<std::string>()(is_text ? without_times(text) : text)) +
           "\n";
  }

  static std::string without_times(const std::string& text) {
    static const std::regex times(
        R"re((['"]([a-z]+_runtime|[a-z_]*per_second|[a-z_]*seconds|time|model_flops_utilization|[a-z_]*_mib)['"]: ?)[-+.e0-9]+)re");
    static const std::regex block(R"(((train|eval|predict)_(runtime|[a-z_]*per_second) +=) +\S+)");  // train/results.h
    static const std::regex date(R"(\d{4}-\d\d-\d\d-[\d:]+_[AP]M)");
    static const std::regex memory(R"(memory: [^\n]*)");
    // Regular expressions are slow: only lines that can hold what they look for meet them.
    static const Words hints = {"time", "second", "utilization", "_mib", "memory: ", "_AM", "_PM"};
    std::string out;
    for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
      end = std::min(text.find('\n', begin), text.size() - 1) + 1;
      std::string line = text.substr(begin, end - begin);
      if (std::any_of(hints.begin(), hints.end(), [&](const auto& hint) { return line.find(hint) != line.npos; })) {
        line = std::regex_replace(std::regex_replace(line, times, "$1T"), block, "$1 T");
        line = std::regex_replace(std::regex_replace(line, date, "DATE"), memory, "memory");
      }
      out += line;
    }
    return out;
  }

  Function task_;
  Words base_;
  std::string out_;
  std::map<Words, std::string> seen_;
};

/// Several lists of cases as one.
template <class Case>
std::vector<Case> together(std::vector<Case> all, const std::vector<std::vector<Case>>& others) {
  for (const auto& more : others) all.insert(all.end(), more.begin(), more.end());
  return all;
}

inline bool has_name(const config::Option& option, const std::string& flag) {
  return std::find(option.names().begin(), option.names().end(), flag) != option.names().end();
}

template <class Case>
const Case* find_case(const std::vector<Case>& cases, const config::Option& option) {
  for (const Case& c : cases) {
    if (has_name(option, c.flag)) return &c;
  }
  return nullptr;
}

/// notes: of the task's parser for a whole command line; it throws what is wrong.
inline void expect_idle_or_refused(const config::Option& option, const FlagCase* own,
                                   const std::function<Words(const Words&)>& notes) {
  std::string name = option.names()[0], said;
  if (name.ends_with('*')) name.back() = 'x';
  const bool is_refused = option.effect() == config::Option::Effect::kRefused;
  for (const char* value : {"1", "2"}) {
    try {
      for (const std::string& note : notes({name + "=" + (own ? own->words[0] : value)})) said += note + "\n";
    } catch (const ConfigError& e) {
      said += std::string(e.what()) + "\n";
    }
  }
  const std::string expected = name + (is_refused ? " is not supported: " : " has no effect: ");
  EXPECT_NE(said.find(expected), std::string::npos) << name << ": " << said;
}

inline void sweep(const config::OptionTable& table, SweptTask& task, const std::function<Words(const Words&)>& notes,
                  const std::vector<FlagCase>& cases, const std::vector<Unseen>& unseen) {
  EXPECT_EQ(task.run({}), task.run({"--"})) << "two runs alike must look alike";
  const auto parse = [&](const Words& flags) { return notes(task.with_base(flags)); };
  for (const config::Option& option : table.options()) {
    const FlagCase* own = find_case(cases, option);
    const std::string& name = option.names()[0];
    if (option.positional()) continue;
    if (option.effect() != config::Option::Effect::kWorks) {
      expect_idle_or_refused(option, own, parse);
    } else if (own != nullptr) {
      Words flags = own->with;
      flags.push_back(own->flag);
      flags.insert(flags.end(), own->words.begin(), own->words.end());
      const auto ends_early = [&](const Words& run) { return task.run(run).starts_with("error: "); };
      EXPECT_FALSE(ends_early(own->with) && ends_early(flags))  // a flag may make an error of a run, or the other way
          << "the runs with " << name << " and without end early: " << task.run(own->with).substr(0, 300);
      EXPECT_TRUE(task.run(flags) != task.run(own->with))
          << name << " changes nothing: " << task.run(flags).substr(0, 300);
    } else {
      EXPECT_NE(find_case(unseen, option), nullptr) << name << " has no case: add a row to this file";
    }
  }
}

/// A model folder with random weights.
inline void make_model(const std::string& from, const std::string& to, const std::string& seed = "42") {
  std::ostringstream quiet;
  ASSERT_EQ(init_model({from, to, "--seed", seed}, quiet, quiet), 0);
}

inline std::string write_lines(const std::string& file, const Words& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  write_file_atomically(file, text);
  return file;
}

}  // namespace tessera::tasks
