// Flags that messages, help texts and documents name: each exists.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/commands.h"
#include "launch/flags_behind.h"
#include "launch/launch.h"
#include "worker/tasks.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Flags = std::set<std::string>;

const std::string kRoot = std::string(TESSERA_TEST_DATA) + "/../..";
const std::regex kFlag("--[a-z][a-z0-9_]*[a-z0-9]");

void add_flags(const std::string& text, Flags& flags) {
  for (std::sregex_iterator it(text.begin(), text.end(), kFlag), end; it != end; ++it) flags.insert(it->str());
}

/// The spellings at the beginning of a help text's lines.
Flags flags_of_help(const std::string& help) {
  Flags flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word && word.starts_with("-");) add_flags(word, flags);
  }
  return flags;
}

std::map<std::string, Flags> flags_by_command() {
  std::map<std::string, Flags> all;
  const auto add = [&](const std::string& name, auto&& function, const std::vector<std::string>& args) {
    std::ostringstream out, err;
    EXPECT_EQ(function(args, out, err), 0);
    all[name].merge(flags_of_help(out.str()));
  };
  for (const auto& task : worker::tasks()) add(task.name, task.function, {"--help"});
  for (const auto& command : cli::commands()) {
    const std::string name = command.name;
    if (command.function != nullptr && name != "env" && name != "launch") add(name, command.function, {"--help"});
  }
  add("config", cli::config_command, {"default", "--help"});
  add("config", cli::config_command, {"update", "--help"});
  all["launch"] = flags_of_help(launch::launch_help({}));
  return all;
}

/// The texts of a C++ source, without its comments.
std::string literals(const std::string& source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      i = source.find('\n', i);
      if (i == std::string::npos) break;
    } else if (source[i] == '\'') {
      i += source[i + 1] == '\\' ? 3 : 2;
    } else if (source[i] == '"') {
      for (++i; i < source.size() && source[i] != '"'; ++i) {
        const bool is_escape = source[i] == '\\';
        out += is_escape ? ' ' : source[i];
        if (is_escape) ++i;
      }
      const auto next = source.find_first_not_of(" \n", i + 1);  // the next literal may go on with this one
      if (next != std::string::npos && source[next] != '"') out += '\n';
    }
  }
  return out;
}

Flags named_in(const fs::path& file) {
  Flags flags;
  add_flags(literals(read_file(file)), flags);
  return flags;
}

class FlagNames : public testing::Test {
 protected:
  std::map<std::string, Flags> by_command_ = flags_by_command();
  const Flags general_ = {"--help", "--version", "--config"};  // beside the tables

  bool has(const std::string& command, const std::string& flag) const {
    return by_command_.at(command).contains(flag) || general_.contains(flag);
  }
  bool some_command_has(const std::string& flag) const {
    for (const auto& [name, flags] : by_command_) {
      if (has(name, flag)) return true;
    }
    return false;
  }
};

const Flags kOfOtherPrograms = {"--exclude",      "--private", "--revision",  // what uploads
                                "--distribution", "--map",     "--mpi",       // srun, mpirun
                                "--gpus",                                     // srun's --gpus-per-task
                                "--pooling"};                                 // llama.cpp
// Keys of PEFT methods, which are flags of the tasks though no help lists them.
const Flags kKeysOfMethods = {"--alpha", "--target_parameters"};
// "give --max_grad_norm to the task", and what an estimate advises a run to take
// "--fsdp_offload_folder of the launcher".
const Flags kWithTheirCommand = {"--max_grad_norm", "--fsdp_sharding_strategy", "--device",
                                 "--bf16",          "--use_peft_lora",          "--fsdp_offload_folder"};

TEST_F(FlagNames, OfEveryTextAreThoseOfSomeCommand) {
  for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/src")) {
    if (!entry.is_regular_file()) continue;
    for (const std::string& flag : named_in(entry.path()))
      EXPECT_TRUE(some_command_has(flag) || kOfOtherPrograms.contains(flag) || kKeysOfMethods.contains(flag))
          << flag << " in " << entry.path();
  }
}

// A hint must name a flag of the command that the user has typed.
TEST_F(FlagNames, OfWhatSeveralCommandsSayAreThoseOfEach) {
  const std::vector<std::string> trainings = {"sft",  "seq2seq", "summarize", "classify", "dpo",
                                              "orpo", "cpo",     "kto",       "reward"};
  const std::vector<std::pair<std::string, std::vector<std::string>>> speakers = {
      {"chat", {"sft", "generate", "render"}},
      {"train", {"sft", "seq2seq", "summarize", "classify"}},
      {"tasks/training_job", trainings},
      {"tasks/pair_training", {"seq2seq", "summarize"}},
      {"tasks/classify", {"classify"}},
      {"tasks/sft", {"sft"}},
      {"tasks/training_tokenizer", {"sft", "dpo", "orpo", "cpo", "kto", "reward"}},
      {"tasks/preference_step", {"dpo", "orpo", "cpo", "kto", "reward"}},
      {"tasks/preference_training", {"dpo", "orpo", "cpo", "kto", "reward"}},
      {"tasks/seq2seq", {"seq2seq"}},
      {"tasks/summarize", {"summarize"}},
      {"tasks/generate", {"generate"}},
      {"verify/verify", {"verify"}},
      {"tasks/merge", {"merge"}},
      {"tasks/combine", {"combine"}},
      {"tasks/init_model", {"init-model"}},
      {"tasks/lora_flags", trainings},
      {"tasks/quant_flags", trainings},
      {"launch", {"launch"}},
      {"estimate", {"estimate"}}};
  for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/src")) {
    if (!entry.is_regular_file()) continue;
    const std::string path = fs::relative(entry.path(), kRoot + "/src");
    for (const auto& [place, commands] : speakers) {
      if (!path.starts_with(place)) continue;
      for (const std::string& flag : named_in(entry.path())) {
        for (const std::string& command : commands)
          EXPECT_TRUE(has(command, flag) || kWithTheirCommand.contains(flag) || kKeysOfMethods.contains(flag))
              << path << " names " << flag << ", which " << command << " has not";
      }
    }
  }
}

/// Behind a training task stands what either has. Flags of both are the task's.
TEST_F(FlagNames, OfLaunchBehindATrainingTaskAreLaunchsUnlessTheTaskHasThem) {
  const auto flags = flags_by_command();
  launch::LaunchOptions options;
  config::AccelerateInput accelerate;
  const config::OptionTable launcher = launch::launch_table(options, accelerate);
  const launch::Tasks tasks = cli::tasks();
  ASSERT_EQ(tasks.training.size(), 9u);
  for (const auto& task : tasks.training) {
    for (const auto& option : launcher.options()) {
      if (option.positional() || option.effect() != config::Option::Effect::kWorks) continue;
      const std::string& name = option.names()[0];
      const auto words = launch::with_flags_in_front({task, name + "=1"}, tasks);
      EXPECT_EQ(words[0] == task, flags.at(task).contains(name)) << task << " " << name;
    }
  }
}

}  // namespace
}  // namespace tessera
