// tessera config, config update and to-fsdp2, beside the files that accelerate's own commands write.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>

#include "base/file.h"
#include "config/accelerate.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "support/terminal.h"

namespace tessera {
namespace {

using test::Finished;
using test::operator+;

const std::string kFiles = test::kTestData + "/accelerate_config/";

class ConfigCommand : public ::testing::Test {
 protected:
  /// The program with `input` as its standard input.
  Finished run(const std::string& input, test::Words args) const {
    write_file_atomically(folder_.path() + "/input", input);
    test::Words command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" < '" + folder_.path() + "/input'", TESSERA_BINARY};
    return test::run(command + args, {{"HF_HOME", folder_.path()}});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  test::TempFolder folder_{"config_command"};
};

TEST_F(ConfigCommand, TheSameAnswersGiveAcceleratesFile) {
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFiles)) {
    if (entry.path().extension() != ".answers") continue;
    const std::string name = entry.path().stem();
    const Finished r = run(read_file(entry.path()), {"config", "--config_file", in(name + ".yaml")});
    ASSERT_EQ(r.exit_code, 0) << name << r.err << r.out;
    EXPECT_EQ(read_file(in(name + ".yaml")), read_file(kFiles + name + ".yaml")) << name;
    EXPECT_SAYS(r.out, "accelerate configuration saved at " + in(name + ".yaml"));
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

TEST_F(ConfigCommand, EmptyAnswersTakeWhatIsProposedAndLaunchReadsIt) {
  const Finished r = run(std::string(60, '\n'), {"config", "--model", test::kTinyChat});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto config = config::load_accelerate(in("accelerate/default_config.yaml")).config;  // HF_HOME's default file
  EXPECT_TRUE(config.use_fsdp);
  EXPECT_EQ(config.fsdp.version, 2);
  EXPECT_EQ(config.fsdp.transformer_layer_cls_to_wrap, std::vector<std::string>{"LlamaDecoderLayer"});
  EXPECT_SAYS(r.out, "LoRA over 4-bit weights");
  EXPECT_SAYS(r.out, "a rank, fits");
  EXPECT_SAYS(r.out, std::string(test::kTinyChat) + ": ");
  EXPECT_SAYS(r.out, "this machine: ");
}

TEST_F(ConfigCommand, WrongAnswersAreAskedForAgainAndMissingOnesNamed) {
  const Finished r = run("multi-TPU\nNo distributed training\nperhaps\nyes\n9\n0\n", {"config"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* part : {"number from 0 to 2", "Please enter yes or no.", "saved at"}) EXPECT_SAYS(r.out, part);
  const Finished ended = run("multi-CPU\n1\n", {"config", "--config_file", in("none.yaml")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_SAYS(ended.err, "the answers ended at the question 'Should distributed operations be checked");
  EXPECT_FALSE(std::filesystem::exists(in("none.yaml"))) << "nothing is written before all is answered";
}

TEST_F(ConfigCommand, NumbersThatAreTooLargeAreAskedForAgain) {
  const Finished r = run("multi-CPU\n99999999999\n2\n0\nhost\n65536\n65535\n", {"config"});
  EXPECT_SAYS(r.out, "Please enter a whole number from 1 to 1024.");
  EXPECT_SAYS(r.out, "Please enter a whole number from 0 to 65535.");
  EXPECT_SAYS(r.err, "the answers ended at the question 'Are all the machines on the same local network?");
}

TEST_F(ConfigCommand, WhatLaunchWouldRefuseIsNotWritten) {
  std::string answers = read_file(kFiles + "fsdp2.answers");
  answers.replace(answers.find("2\n2\n4\n"), 6, "2\n2\n6\n");  // two copies of two ranks are not six processes
  const Finished r = run(answers, {"config", "--config_file", in("bad.yaml")});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_SAYS(r.err, "dp_replicate_size 2 x dp_shard_size 2 must be num_processes 6");
  EXPECT_FALSE(std::filesystem::exists(in("bad.yaml")));
}

TEST_F(ConfigCommand, UpdateWritesWhatAcceleratesUpdateWrites) {
  for (const char* name : {"guide", "legacy"}) {
    const std::string file = in(std::string(name) + ".yaml");
    write_file_atomically(file, read_file(kFiles + name + ".old.yaml"));
    const Finished r = run("", {"config", "update", "--config_file", file});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(read_file(file), read_file(kFiles + name + ".updated.yaml"));
  }
  write_file_atomically(in("odd.yaml"), "distributed_type: FSDP\nnum_procesess: 2\n");
  const Finished r = run("", {"config", "update", "--config_file", in("odd.yaml")});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_SAYS(r.err, "num_procesess");
  EXPECT_EQ(read_file(in("odd.yaml")), "distributed_type: FSDP\nnum_procesess: 2\n");
}

TEST_F(ConfigCommand, ToFsdp2WritesWhatAcceleratesCommandWritesAndNamesWhatItLeavesOut) {
  for (const char* name : {"guide", "legacy"}) {
    const Finished r = run("", {"to-fsdp2", "--config_file", kFiles + name + ".old.yaml", "--output_file", in(name)});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(read_file(in(name)), read_file(kFiles + name + ".fsdp2.yaml"));
    const bool has_note = r.out.find("fsdp_use_orig_params is not part of version 2") != std::string::npos;
    EXPECT_EQ(has_note, std::string(name) == "guide") << r.out;
  }
  const Finished exists = run("", {"to-fsdp2", "--config_file", in("guide"), "--output_file", in("legacy")});
  EXPECT_EQ(exists.exit_code, 2);
  EXPECT_SAYS(exists.err, "--overwrite");
  const Finished nowhere = run("", {"to-fsdp2", "--config_file", in("guide")});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_SAYS(nowhere.err, "--output_file FILE, or --overwrite");
  const Finished again = run("", {"to-fsdp2", "--config_file", in("guide"), "--overwrite"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_SAYS(again.out, "of version 2 already");
}

TEST_F(ConfigCommand, OnATerminalArrowKeysChoose) {
  test::OnTerminal t({"config", "--config_file", in("typed.yaml")});
  t.answer("multi-GPU\r\n", "\x1b[A\x1b[A\x1b[A\n");  // up, also past the first
  t.answer("CPU only", "yes\n");
  t.answer("fp16\r\n", "0\x1b[B\x1bOB\x1b[B\n");  // the first, then down in both spellings, also past the last
  t.wait_for("saved at");
  EXPECT_EQ(t.wait_status(), 0);
  const std::string written = read_file(in("typed.yaml"));
  EXPECT_SAYS(written, "distributed_type: 'NO'");
  EXPECT_SAYS(written, "use_cpu: true");
  EXPECT_SAYS(written, "mixed_precision: bf16");
}

TEST_F(ConfigCommand, ASignalInAMenuLeavesTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    test::OnTerminal t({"config", "--config_file", in("none.yaml")});
    t.wait_for("multi-GPU\r\n");
    EXPECT_FALSE(t.echoes());
    t.signal(signal);
    const int status = t.wait_status();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_TRUE(t.echoes());  // as a new terminal does
  }
}

TEST_F(ConfigCommand, CtrlCInAMenuEndsItAndWritesNothing) {
  test::OnTerminal t({"config", "--config_file", in("none.yaml")});
  t.answer("multi-GPU\r\n", "\x03");
  const int status = t.wait_status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_FALSE(std::filesystem::exists(in("none.yaml")));
}

}  // namespace
}  // namespace tessera
