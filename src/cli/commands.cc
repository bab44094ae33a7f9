#include "cli/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/nearest.h"
#include "cli/exit_code.h"
#include "config/problems.h"
#include "launch/cores.h"
#include "launch/flags_behind.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr bool kTrains = true;

std::string help() {
  std::string text =
      "tessera: fully sharded fine-tuning of Transformers\n\nUsage: tessera COMMAND [flags]\n"
      "       tessera launch [flags] TASK|PROGRAM [flags of the task]\n\nCommands\n";
  for (const Command& command : commands()) text += fmt::format("  {:<12} {}\n", command.name, command.help);
  return text +
         "\nTrainings take the flags of launch, too: tessera sft --num_processes 2 ...\n"
         "'tessera COMMAND --help' lists a command's flags; 'tessera --version' says the version.\n";
}

int run_unguarded(const Arguments& args, std::ostream& out, std::ostream& err) {
  if (args.size() == 2 && args[0] == "help") return run_unguarded({args[1], "--help"}, out, err);
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    (args.empty() ? err : out) << help();
    return args.empty() ? kConfigError : kSuccess;
  }
  if (args[0] == "--version") {
    out << "tessera " << TESSERA_VERSION << "\n";
    return kSuccess;
  }
  const std::string name = args[0] == "estimate-memory" ? "estimate" : args[0];  // accelerate's spelling
  const Arguments rest(args.begin() + 1, args.end());
  std::vector<std::string> names, training;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
    if (command.trains) training.emplace_back(command.name);
    if (name != command.name) continue;
    if (command.trains && launch::asks_for_launch(rest)) return launch_command(args, out, err);
    if (command.function == nullptr) become_worker(name, rest);
    return command.function(rest, out, err);
  }
  const std::string meant = did_you_mean(args[0], names);
  throw config::UsageError(
      fmt::format("unknown command '{}'{}; 'tessera --help' lists all", args[0],
                  meant.empty() ? fmt::format(" (training is {})", fmt::join(training, ", ")) : meant));
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"launch", "start a task or a program on several ranks", launch_command},
      {"sft", "fine-tune a causal language model on chats or texts, fully sharded", nullptr, kTrains},
      {"seq2seq", "fine-tune an encoder-decoder model on pairs of texts, fully sharded", nullptr, kTrains},
      {"summarize", "fine-tune T5 on WikiHow to write summaries, fully sharded", nullptr, kTrains},
      {"classify", "fine-tune a classifier of texts, fully sharded", nullptr, kTrains},
      {"dpo", "train on pairs of answers against a reference (DPO and 14 relatives), fully sharded", nullptr, kTrains},
      {"orpo", "train on pairs of answers by their odds, fully sharded", nullptr, kTrains},
      {"cpo", "train on pairs of answers without a reference (CPO, SimPO, AlphaPO), fully sharded", nullptr, kTrains},
      {"kto", "train on answers labelled good or bad, fully sharded", nullptr, kTrains},
      {"reward", "train a reward model on pairs of answers, fully sharded", nullptr, kTrains},
      {"generate", "continue prompts or answer conversations with a model and an adapter", nullptr},
      {"chat", "talk to a model and its adapter", nullptr},
      {"verify", "compare a model folder with reference outputs beside it", nullptr},
      {"merge", "fold an adapter into the weights of its model", nullptr},
      {"combine", "make one LoRA adapter of several", nullptr},
      {"quantize", "pack the linear layers of a model in 4 or 8 bits, as bitsandbytes does", nullptr},
      {"inspect", "say what a checkpoint, model or weight file holds, and whether it is whole", nullptr},
      {"export", "turn a checkpoint into a Hugging Face folder or a GGUF file", nullptr},
      {"init-model", "make a model folder with random weights from a config.json", nullptr},
      {"estimate", "say what a model needs: its size, and the memory of a rank that fine-tunes it", estimate_command},
      {"status", "say what the ranks of a running training are doing, and for whom they wait", status_command},
      {"watch", "show a run in the terminal while it goes on", watch_command},
      {"report", "show runs as one HTML file: curves, memory, time, answers, settings", report_command},
      {"tokenize", "show the token ids, offsets and decoded text of rows of text", tokenize_command},
      {"render", "show what a model reads of conversations and other rows of training data", nullptr},
      {"config", "answer accelerate's questions and write a config file for launch", config_command},
      {"to-fsdp2", "turn a config file of FSDP version 1 into one of version 2", to_fsdp2_command},
      {"completion", "print the completion script of a shell: bash, zsh or fish", nullptr},
      {"man", "write manual pages into a folder", nullptr},
      {"test", "start ranks with a config file and check that they train", test_command},
      {"env", "show versions, cores and environment variables", env_command},
  };
  return table;
}

launch::Tasks tasks() {
  launch::Tasks found{{}, worker_path()};
  for (const Command& command : commands()) {
    if (command.function == nullptr) found.names.emplace_back(command.name);
    if (command.trains) found.training.emplace_back(command.name);
  }
  return found;
}

void become_worker(const std::string& task, const Arguments& args) {
  const std::string worker = worker_path();
  for (const auto& [name, value] : launch::waiting_environment()) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> texts = {"tessera", task};
  texts.insert(texts.end(), args.begin(), args.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  ::execv(worker.c_str(), pointers.data());
  throw ConfigError(fmt::format("cannot start '{}': {}", worker, std::strerror(errno)));
}

std::string worker_path() {
  std::error_code code;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", code);
  if (code) {
    throw ConfigError(fmt::format(
        "cannot find tessera-worker, which lies beside this program: /proc/self/exe cannot be read ({}); mount /proc",
        code.message()));
  }
  const std::string worker = (self.parent_path() / "tessera-worker").string();
  if (::access(worker.c_str(), X_OK) != 0) {
    throw ConfigError(fmt::format("cannot start '{}' ({}); keep the programs tessera and tessera-worker in one folder",
                                  worker, std::strerror(errno)));
  }
  return worker;
}

int run(const Arguments& args, std::ostream& out, std::ostream& err) {
  return run_guarded([&] { return run_unguarded(args, out, err); }, err);
}

}  // namespace tessera::cli
