// The program `tessera` as a user types it: messages, streams and exit codes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "worker/tasks.h"

namespace tessera {
namespace {

using test::contains;
using test::Finished;

Finished tessera(std::vector<std::string> args) {
  args.insert(args.begin(), TESSERA_BINARY);
  return test::run(args, {{"HF_HOME", "/nonexistent"}});
}

TEST(Cli, HelpGoesToStdoutAndListsEveryCommand) {
  const Finished r = tessera({"--help"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(r.err.empty());
  for (const cli::Command& command : cli::commands()) EXPECT_TRUE(contains(r.out, command.name)) << command.name;
}

TEST(Cli, WithoutACommandItSaysHowToUseItAndFails) {
  const Finished r = tessera({});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_TRUE(contains(r.err, "Usage:"));
}

TEST(Cli, OutputThatCannotBeWrittenIsAnErrorOfBothPrograms) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--help"}, {"completion", "bash"}}) {
    std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" >/dev/full", TESSERA_BINARY};
    command.insert(command.end(), args.begin(), args.end());
    const Finished r = test::run(command);
    EXPECT_EQ(r.exit_code, cli::kCheckpointError) << args[0];
    EXPECT_SAYS(r.err, "not all of the output could be written");
  }
}

TEST(Cli, WithoutProcItSaysWhyTheWorkerIsNotFound) {
  const std::vector<std::string> apart = {"/usr/bin/unshare", "--mount", "/bin/sh", "-c"};
  const auto run = [&](const std::string& script) {
    std::vector<std::string> command = apart;
    command.insert(command.end(), {"mount -t tmpfs none /proc && " + script, TESSERA_BINARY});
    return test::run(command);
  };
  if (run("true").exit_code != 0) GTEST_SKIP() << "mounts cannot be made here (needs root)";
  const Finished r = run("exec \"$0\" sft");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_SAYS(r.err, "/proc/self/exe cannot be read (No such file or directory); mount /proc");
}

TEST(Cli, UnknownCommandsAreNamedWithTheNearest) {
  const Finished r = tessera({"lunch"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_EQ(r.err, "tessera error: unknown command 'lunch' (did you mean 'launch'?); 'tessera --help' lists all\n");
  EXPECT_SAYS(tessera({"train"}).err, "unknown command 'train' (training is sft, seq2seq, ");
}

TEST(Cli, HelpOfACommandIsThatOfItsFlag) {
  EXPECT_EQ(tessera({"help", "sft"}).out, tessera({"sft", "--help"}).out);
  EXPECT_EQ(tessera({"help"}).out, tessera({"--help"}).out);
}

TEST(Cli, LaunchErrorsNameWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"launch", "--config_file", "no.yaml", "sh"}, "--config_file 'no.yaml' does not exist"},
      {{"launch"}, "nothing to launch: name a task ("},
      {{"launch", "no-such-program"}, "'no-such-program' is neither a task"},
      {{"launch", "train.py"}, "tessera launch ... python train.py"},
      {{"launch", "--num_machines", "2", "--num_processes", "2", "sh"}, "main_process_ip is not set"},
      {{"launch", "--num_procesess", "2", "sh"}, "did you mean '--num_processes'?"},
      {{"launch", "--num_processes", "1000", "--enable_cpu_affinity", "sh"},
       "1000 ranks with 1 threads each need 1000 cores"},
      {{"launch", "--fsdp_sharding_strategy", "HYBRID_SHARD", "--fsdp_shard_group_size", "2", "sh"}, "does not divide"},
      {{"launch", "--log_dir", "/proc/nowhere", "sh"}, "cannot write '/proc/nowhere"},
  };
  for (const auto& [args, expected] : cases) {
    const Finished r = tessera(args);
    EXPECT_TRUE(contains(r.err, expected)) << r.err;
    EXPECT_NE(r.exit_code, 0);
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << "one message: " << r.err;
  }
}

/// Prefetch works where gathers copy: help, header and guide promise it there only.
TEST(Cli, PrefetchIsPromisedToHideCommunicationOnlyWhereGathersCopy) {
  const Finished r = tessera({"launch", "--help"});
  std::size_t said = 0;
  for (std::size_t at = 0; (at = r.out.find("where gathers copy", at)) != std::string::npos; ++at) ++said;
  EXPECT_EQ(said, 2u) << "of --fsdp_backward_prefetch and --fsdp_forward_prefetch\n" << r.out;
  const std::string root = std::string(TESSERA_TEST_DATA) + "/../../";
  std::stringstream header, guide;
  header << std::ifstream(root + "include/tessera/fsdp/fully_shard.h").rdbuf();
  guide << std::ifstream(root + "docs/guides/sharding.md").rdbuf();
  EXPECT_NE(header.str().find("Only where gathers copy"), std::string::npos);
  EXPECT_NE(guide.str().find("nothing is started ahead and no memory is taken for it"), std::string::npos);
}

TEST(Cli, LaunchHelpListsAcceleratesFlagsByGroup) {
  const Finished r = tessera({"launch", "--help"});
  EXPECT_EQ(r.exit_code, 0);
  for (const char* flag : {"--config_file",
                           "--cpu",
                           "--multi_gpu",
                           "--mixed_precision",
                           "--num_processes",
                           "--num_machines",
                           "--num_cpu_threads_per_process",
                           "--enable_cpu_affinity",
                           "--use_fsdp",
                           "--gpu_ids",
                           "--same_network",
                           "--machine_rank",
                           "--main_process_ip",
                           "--main_process_port",
                           "--tee",
                           "--log_dir",
                           "--role",
                           "--rdzv_backend",
                           "--rdzv_conf",
                           "--max_restarts",
                           "--monitor_interval",
                           "--no_python",
                           "--debug",
                           "--fsdp_sharding_strategy",
                           "\nFully sharded data parallelism\n"}) {
    EXPECT_TRUE(contains(r.out, flag)) << flag;
  }
}

TEST(Cli, ConfigDefaultWritesAFileThatLaunchReads) {
  const std::string path = testing::TempDir() + "cli_default.yaml";
  std::filesystem::remove(path);
  const Finished written =
      tessera({"config", "default", "--config_file", path, "--num_processes", "1", "--mixed_precision", "bf16"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_TRUE(contains(written.out, "accelerate configuration saved at " + path));
  const Finished launched =
      tessera({"launch", "--config_file", path, "sh", "-c", "echo $ACCELERATE_MIXED_PRECISION $FSDP_AUTO_WRAP_POLICY"});
  EXPECT_EQ(launched.out, "bf16 TRANSFORMER_BASED_WRAP\n") << launched.err;
  const Finished again = tessera({"config", "default", "--config_file", path});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_TRUE(contains(again.err, "exists already")) << again.err;
}

TEST(Cli, ConfigDefaultWritesJsonIntoAJsonFile) {
  const std::string path = testing::TempDir() + "cli_default.json";
  std::filesystem::remove(path);
  const Finished written = tessera({"config", "default", "--config_file", path, "--num_processes", "1"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  const Finished launched = tessera({"launch", "--config_file", path, "sh", "-c", "echo $FSDP_AUTO_WRAP_POLICY"});
  EXPECT_EQ(launched.out, "TRANSFORMER_BASED_WRAP\n") << launched.err;
}

TEST(Cli, EnvShowsVersionsAndVariables) {
  const Finished r = tessera({"env"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(contains(r.out, "libtorch: 2."));
  EXPECT_TRUE(contains(r.out, "MASTER_ADDR"));
}

TEST(Cli, EstimateReadsHeadersOrTheConfigAlone) {
  const std::string data = std::string(TESSERA_TEST_DATA) + "/fsdp_runs/base_llama";
  const std::string folder = testing::TempDir() + "config_alone_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(data + "/config.json", folder + "/config.json");
  const Finished r = tessera({"estimate", data}),
                 alone = tessera({"estimate-memory", folder, "--dtypes", "float32", "float16", "--lora_r", "4"});
  std::filesystem::remove_all(folder);
  for (const Finished& f : {r, alone}) {
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_TRUE(contains(f.out, "11,160 parameters")) << f.out;
    EXPECT_TRUE(contains(f.out, "SHARD_GRAD_OP")) << f.out;
  }
  const Finished gone = tessera({"estimate", "t5-base"});
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_EQ(std::count(gone.err.begin(), gone.err.end(), '\n'), 1) << gone.err;
}

TEST(Cli, EstimateMeasuresTheRatesThatAreNotGiven) {
  const Finished r = tessera({"estimate", std::string(TESSERA_TEST_DATA) + "/tiny_chat", "--hosts", "2",
                              "--ranks_per_host", "2", "--link", "1GB/s", "--mixed_precision", "bf16"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "(what was not given was measured here)")) << r.out;
  EXPECT_TRUE(contains(r.out, "LoRA, r 8")) << r.out;
  EXPECT_TRUE(contains(r.out, "FULL_SHARD: ")) << r.out;
}

TEST(Cli, RenderTakesRowsFromStandardInput) {
  const Finished r =
      test::run({"/bin/sh", "-c", R"(echo '{"prompt": 1}' | "$0" render --template chatml)", TESSERA_BINARY});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "standard input:1: key")) << r.out;
}

TEST(Cli, TheWorkerHasAFunctionForEveryTaskOfTheTableAndNoOther) {
  std::vector<std::string> functions;
  for (const worker::Task& task : worker::tasks()) functions.emplace_back(task.name);
  std::vector<std::string> names = cli::tasks().names;
  names.emplace_back(cli::kSelfTest);
  names.emplace_back(cli::kMeasureRates);
  std::sort(functions.begin(), functions.end());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(functions, names);
}

}  // namespace
}  // namespace tessera
