// Training runs that are asked to end: by the keyboard, a service manager, a cluster, a terminal that closes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/program.h"
#include "support/ranks.h"
#include "support/sft_job.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;
using test::Words;
using test::operator+;

class Interrupted : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "interrupted_" + std::to_string(::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const Finished made = test::run({TESSERA_BINARY, "init-model", data(), folder_ + "/model"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static const std::string& data() { return test::kTinyChat; }
  Words sft(const Words& flags = {"--max_steps", "100000"}, const std::string& dataset = data()) const {
    return test::sft_words(folder_ + "/model", dataset, folder_, "out") +
           Words{"--max_seq_length", "64", "--print_model", "false", "--logging_steps", "1", "--save_strategy", "no"} +
           flags;
  }
  static Words alone(const Words& words) { return Words{TESSERA_BINARY} + words; }
  static Words launched(const Words& words) {
    return Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2"} + words;
  }
  /// One step of these rows takes longer than any test: all micro-batches of an epoch are one step.
  Words endless_step() const {
    const std::string rows = folder_ + "/rows.jsonl";
    std::ofstream out(rows);
    for (int i = 0; i < 20'000; ++i) out << R"({"text": "What is a cat? A animal."})" << "\n";
    return sft({"--max_steps", "10", "--gradient_accumulation_steps", "1000000", "--per_device_train_batch_size", "1"},
               rows);
  }
  static bool has_logged(Subprocess& run) { return run.wait_for_output("'loss'", 120s); }

  void expect_saved(const Finished& r, int signal) const {
    EXPECT_EQ(r.exit_code, 128 + signal) << r.out << r.err;
    expect_saved(r);
  }
  void expect_saved(const Finished& r) const {
    EXPECT_SAYS(r.out, "interrupted after step");
    expect_checkpoint(r.err);
  }
  void expect_checkpoint(const std::string& why_not) const {
    int checkpoints = 0;
    for (const auto& entry : fs::directory_iterator(folder_ + "/out")) {
      if (!entry.path().filename().string().starts_with("checkpoint-")) continue;
      ++checkpoints;
      EXPECT_EQ(test::run({TESSERA_BINARY, "inspect", entry.path().string()}).exit_code, 0);
    }
    EXPECT_EQ(checkpoints, 1) << why_not;
  }
  bool is_saved() const {
    for (const auto& entry : fs::directory_iterator(folder_ + "/out"))
      if (entry.path().filename().string().starts_with("checkpoint-")) return true;
    return false;
  }

  std::string folder_;
};

/// What a service manager's stop and a cluster's cancel do; the launcher passes its own on.
TEST_F(Interrupted, ASignalToAllProcessesAtOnceSaves) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    fs::remove_all(folder_ + "/out");
    Subprocess run(launched(sft()));
    ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
    const auto ranks = test::ranks_of(run.pid());
    ASSERT_EQ(ranks.size(), 2u);
    for (int times = 0; times < 3; ++times) {
      for (const auto& [rank, pid] : ranks) ::kill(pid, signal);
      run.signal(signal);
      std::this_thread::sleep_for(1ms);
    }
    expect_saved(run.finish(120s), signal);
  }
}

TEST_F(Interrupted, SignalsOneAfterTheOtherSave) {
  Subprocess run(launched(sft()));
  ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
  for (const int signal : {SIGTERM, SIGHUP, SIGTERM}) run.signal(signal);  // systemd's SendSIGHUP
  const Finished r = run.finish(120s);
  // Signals that wait together are read lowest number first: either may be the one that ends the run.
  EXPECT_TRUE(r.exit_code == 128 + SIGTERM || r.exit_code == 128 + SIGHUP) << r.exit_code << r.out << r.err;
  expect_saved(r);
}

TEST_F(Interrupted, OneProcessSavesAtEachSignal) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    fs::remove_all(folder_ + "/out");
    Subprocess run(alone(sft()));
    ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
    for (int times = 0; times < 3; ++times) {
      run.signal(signal);
      std::this_thread::sleep_for(1ms);
    }
    expect_saved(run.finish(120s), signal);
  }
}

TEST_F(Interrupted, ARunThatNobodyReadsSavesWhenItsTerminalCloses) {
  for (const bool launch : {false, true}) {
    fs::remove_all(folder_ + "/out");
    Subprocess run(launch ? launched(sft()) : alone(sft()));
    ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
    run.stop_reading();
    run.signal(SIGHUP);
    const Finished r = run.finish(120s);
    EXPECT_EQ(r.exit_code, 128 + SIGHUP) << launch;
    expect_checkpoint("no checkpoint");
  }
}

TEST_F(Interrupted, ARunUnderNohupGoesOn) {
  for (const bool launch : {false, true}) {
    fs::remove_all(folder_ + "/out");
    Words words = launch ? launched(sft({"--max_steps", "40"})) : alone(sft({"--max_steps", "40"}));
    words.insert(words.begin(), {"/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh"});
    Subprocess run(words);
    ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
    if (launch) {
      for (const auto& [rank, pid] : test::ranks_of(run.pid())) ::kill(pid, SIGHUP);
    }
    run.signal(SIGHUP);
    const Finished r = run.finish(120s);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_SAYS(r.out, "model saved in");
  }
}

TEST_F(Interrupted, ASignalDuringTheLastSaveLosesNothing) {
  Subprocess run(alone(sft({"--max_steps", "2"})));
  ASSERT_TRUE(run.wait_for_output("train_runtime", 120s)) << run.finish(0s).err;
  run.signal(SIGTERM);
  const Finished r = run.finish(120s);
  EXPECT_TRUE(fs::exists(folder_ + "/out/model.safetensors"));
  EXPECT_EQ(test::run({TESSERA_BINARY, "inspect", folder_ + "/out"}).exit_code, 0);
}

TEST_F(Interrupted, NoNumberOfTerminationsEndsAStepThatTakesLong) {
  Subprocess run(alone(endless_step()));
  ASSERT_TRUE(run.wait_for_output("Running training", 120s)) << run.finish(0s).err;
  std::this_thread::sleep_for(500ms);
  for (int times = 0; times < 3; ++times) {
    run.signal(SIGTERM);
    std::this_thread::sleep_for(300ms);
    ASSERT_TRUE(run.running());
  }
  // A Ctrl-C after that is a request of its own.
  run.signal(SIGINT);
  const Finished r = run.finish(60s);
  EXPECT_EQ(r.exit_code, 128 + SIGINT);
  EXPECT_FALSE(is_saved());
}

/// A launcher of another kind (torchrun) passes the keyboard's signal on, perhaps late.
TEST_F(Interrupted, WhatTheLauncherPassesOnIsNoSecondRequest) {
  Words words = alone(endless_step());
  words.insert(
      words.begin(),
      {"/bin/sh", "-c", "RANK=0 WORLD_SIZE=1 \"$@\" & child=$!; trap 'kill -INT $child' TERM; wait; wait; wait", "sh"});
  Subprocess launcher(words);
  ASSERT_TRUE(launcher.wait_for_output("Running training", 120s)) << launcher.finish(0s).err;
  pid_t child = -1;
  for (const auto& [pid, name] : test::children_of(launcher.pid())) child = pid;
  ASSERT_GT(child, 0);
  std::this_thread::sleep_for(500ms);
  ::kill(child, SIGINT);
  std::this_thread::sleep_for(300ms);
  launcher.signal(SIGTERM);
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(test::parent_of(child), launcher.pid());
  std::string command;  // of a zombie it is empty
  std::getline(std::ifstream("/proc/" + std::to_string(child) + "/cmdline"), command);
  EXPECT_FALSE(command.empty()) << "it has ended";
  ::kill(child, SIGKILL);
  launcher.finish(20s);
}

TEST_F(Interrupted, ARankThatIsTerminatedIsNamedAndAllSave) {
  Subprocess run(launched(sft()));
  ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
  ::kill(test::ranks_of(run.pid()).at(1), SIGTERM);
  const Finished r = run.finish(120s);
  expect_saved(r, SIGTERM);
  EXPECT_SAYS(r.err, "rank 1 failed with signal 15 (SIGTERM)");
  EXPECT_EQ(r.err.find("rank 0 failed"), std::string::npos) << r.err;
}

TEST_F(Interrupted, ARankThatIsKilledIsNamed) {
  Subprocess run(launched(sft()));
  ASSERT_TRUE(has_logged(run)) << run.finish(0s).err;
  ::kill(test::ranks_of(run.pid()).at(1), SIGKILL);
  const Finished r = run.finish(120s);
  EXPECT_EQ(r.exit_code, 128 + SIGKILL) << r.err;
  EXPECT_SAYS(r.err, "rank 1 failed with signal 9 (SIGKILL: perhaps out of memory)");
}

}  // namespace
}  // namespace tessera
