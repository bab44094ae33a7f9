// Completion scripts and manual pages, made of the commands' own tables.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "cli/commands.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "worker/described_commands.h"

namespace tessera {
namespace {

using test::Finished;
using test::Words;

class Completion : public ::testing::Test {
 protected:
  std::string script(const std::string& shell) const {
    const Finished r = test::run({TESSERA_BINARY, "completion", shell});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  }
  /// What bash offers behind these words; the last may be empty or a beginning.
  Words offered(const Words& words) const {
    std::string line;
    for (const auto& word : words) line += "'" + word + "' ";
    const Finished r =
        test::run({"/bin/bash", "-c",
                   "source '" + folder_.path() + "/tessera.bash'; COMP_WORDS=(" + line +
                       "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tessera; printf '%s\\n' \"${COMPREPLY[@]}\""});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(r.err, "");
    Words out;
    std::istringstream lines(r.out);
    for (std::string word; lines >> word;) out.push_back(word);
    return out;
  }
  test::TempFolder folder_{"completion"};
};

TEST_F(Completion, BashOffersCommandsFlagsAndValues) {
  write_file_atomically(folder_.path() + "/tessera.bash", script("bash"));
  EXPECT_EQ(offered({"tessera", "summ"}), Words{"summarize"});
  EXPECT_EQ(offered({"tessera", "sft", "--lr_scheduler_t"}), Words{"--lr_scheduler_type"});
  EXPECT_EQ(offered({"tessera", "launch", "--num_processes", "2", "sft", "--packing_s"}), Words{"--packing_strategy"});
  EXPECT_EQ(offered({"tessera", "launch", "--num_mach"}), Words{"--num_machines"});
  EXPECT_EQ(offered({"tessera", "launch", "--fsdp_state_dict_type", "SH"}), Words{"SHARDED_STATE_DICT"});
  EXPECT_EQ(offered({"tessera", "sft", "--packing_strategy", ""}), (Words{"bfd", "bfd_split", "wrapped"}));
  EXPECT_EQ(offered({"tessera", "sft", "--packing", "t"}), Words{"true"});
  EXPECT_EQ(offered({"tessera", "config", "u"}), Words{"update"});
  EXPECT_EQ(offered({"tessera", "config", "default", "--fsdp_vers"}), Words{"--fsdp_version"});
  EXPECT_TRUE(offered({"tessera", "sft", "--use_flash"}).empty()) << "a flag without effect";
  EXPECT_TRUE(offered({"tessera", "report", "ou"}).empty()) << "bash completes files itself";
  const Words all = offered({"tessera", ""});
  for (const cli::Command& command : cli::commands())
    EXPECT_NE(std::find(all.begin(), all.end(), command.name), all.end()) << command.name;
}

// _arguments hands a task's words on without launch's own.
TEST_F(Completion, ZshOffersTheFlagsOfALaunchedTask) {
  if (test::run({"/bin/sh", "-c", "command -v zsh"}).exit_code != 0) GTEST_SKIP() << "zsh is not installed";
  write_file_atomically(folder_.path() + "/_tessera", script("zsh"));
  const auto described = [&](const std::string& function, const std::string& words) {
    const Finished r =
        test::run({"/bin/sh", "-c",
                   "exec zsh -fc 'compdef() { print compdef $*; }; _describe() { print $1; }; "
                   "_arguments() { print -rl -- $*; }; source \"$0\"; words=(" +
                       words + "); CURRENT=$#words; " + function + "' '" + folder_.path() + "/_tessera'"});
    EXPECT_EQ(r.err, "");
    return r.out;
  };
  EXPECT_EQ(described("_tessera", "tessera la"), "compdef _tessera tessera\ncommand\n");
  const std::string launch = described("_tessera", "tessera launch sf");
  EXPECT_SAYS(launch, "--num_processes[");
  EXPECT_SAYS(launch, "*::task:");
  const auto at = launch.find("*::task:") + 8;
  const std::string task = launch.substr(at, launch.find('\n', at) - at);
  EXPECT_EQ(described(task, "sf"), "compdef _tessera tessera\ncommand\n");
  EXPECT_SAYS(described(task, "sft --lora_al"), "--lora_alpha[");
}

TEST_F(Completion, ApostrophesOfDescriptionsAreKept) {
  EXPECT_SAYS(script("fish"),
              R"(-l tokenizer_name_or_path -r -d 'folder or file of the tokenizer, if not the model\'s folder')");
  EXPECT_SAYS(script("zsh"),
              R"('--tokenizer_name_or_path[folder or file of the tokenizer, if not the model'\''s folder])");
  if (test::run({"/bin/sh", "-c", "command -v fish"}).exit_code != 0) GTEST_SKIP() << "fish is not installed";
  write_file_atomically(folder_.path() + "/tessera.fish", script("fish"));
  const Finished r = test::run({"/bin/sh", "-c",
                                "HOME='" + folder_.path() + "' exec fish --no-config -c 'source \"" + folder_.path() +
                                    "/tessera.fish\"; complete -C \"tessera seq2seq --tokenizer_n\"'"});
  EXPECT_EQ(r.err, "");
  EXPECT_SAYS(r.out, "--tokenizer_name_or_path\tfolder or file of the tokenizer, if not the model's folder");
}

TEST_F(Completion, EveryShellKnowsEveryFlagThatWorks) {
  const std::string zsh = script("zsh"), fish = script("fish"), bash = script("bash");
  int flags = 0;
  for (const auto& command : worker::described_commands()) {
    if (command.name.find(' ') != std::string::npos) continue;
    for (const auto& flag : command.flags) {
      if (flag.is_argument || !flag.works) continue;
      const std::string name = flag.names[0];
      EXPECT_NE(zsh.find("'" + name + "["), std::string::npos) << name;
      EXPECT_NE(fish.find("from " + command.name + "\" -l " + name.substr(2) + " "), std::string::npos) << name;
      EXPECT_NE(bash.find(name + " "), std::string::npos) << name;
      ++flags;
    }
  }
  EXPECT_GT(flags, 1000);
  const Finished r = test::run({TESSERA_BINARY, "completion", "csh"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_SAYS(r.err, "bash, zsh, fish");
}

TEST_F(Completion, ThereIsAManualPageForEveryCommandWithItsFlags) {
  const std::string pages = folder_.path() + "/man1";
  const auto refused = test::run({TESSERA_BINARY, "man", "sft"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_SAYS(refused.err, "'tessera help sft' shows the flags of sft");
  ASSERT_EQ(test::run({TESSERA_BINARY, "man", pages}).exit_code, 0);
  const std::string program = read_file(pages + "/tessera.1");
  for (const auto& command : worker::described_commands()) {
    std::string name = "tessera-" + command.name;
    std::replace(name.begin(), name.end(), ' ', '-');
    const std::string page = read_file(pages + "/" + name + ".1");
    for (const char* section : {".TH \"", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"})
      EXPECT_SAYS(page.substr(0, 600), section);
    for (const auto& flag : command.flags) {
      std::string escaped;
      for (const char c : flag.names[0]) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
      EXPECT_NE(page.find("\\fB" + escaped + "\\fR"), std::string::npos) << name << " " << flag.names[0];
    }
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);)
      EXPECT_FALSE(line.starts_with("'")) << name << ": roff would read a request: " << line;
  }
  EXPECT_SAYS(program, ".SH EXIT STATUS\n");
}

TEST_F(Completion, EveryCommandHasAnExampleOfFlagsThatItHas) {
  for (const auto& command : worker::described_commands()) {
    if (command.name == "env") continue;  // it takes nothing
    EXPECT_FALSE(command.example.empty()) << command.name;
    const std::string own =
        command.example.substr(0, command.name == "launch" ? command.example.find(" sft") : std::string::npos);
    std::istringstream words(own);
    for (std::string word; words >> word;) {
      if (!word.starts_with("--")) continue;
      const bool known = std::any_of(command.flags.begin(), command.flags.end(), [&](const auto& flag) {
        return flag.works && std::find(flag.names.begin(), flag.names.end(), word) != flag.names.end();
      });
      EXPECT_TRUE(known) << command.name << " has no " << word;
    }
  }
}

TEST_F(Completion, EveryCommandDescribesItselfAsJson) {
  const Finished r = test::run({TESSERA_BINARY, "sft", "--help=json"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_EQ(json["command"], "tessera sft");
  bool found = false;
  for (const auto& option : json["options"]) {
    if (option["names"][0] != "--packing_strategy") continue;
    EXPECT_EQ(option["choices"], (nlohmann::json{"bfd", "bfd_split", "wrapped"}));
    EXPECT_EQ(option["default"], "bfd");
    found = true;
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tessera
