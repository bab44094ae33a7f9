// Ranks of a task are copies of one process (launch/fork_server.h): what they share, and what happens before they are
// there.
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "support/loaded_programs.h"
#include "support/ranks.h"
#include "support/sft_job.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;
using test::Words;
using test::operator+;

class ForkServer : public test::SftJob {
 protected:
  ForkServer() : SftJob("fork_server") {}

  Words endless(const Words& flags = {}) const {
    return Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2"} + flags +
           test::sft_words(folder_ + "/model", test::kTinyChat, folder_, "out") +
           Words{"--max_seq_length", "64",    "--max_steps",     "100000", "--logging_steps", "1",
                 "--print_model",    "false", "--save_strategy", "no"};
  }
  /// Processes, but for zombies, whose command names this test's folder.
  std::set<pid_t> processes() const {
    std::set<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      std::string command;
      if (pid > 0) std::getline(std::ifstream(entry.path() / "cmdline"), command);
      if (command.find(folder_) != std::string::npos) found.insert(pid);
    }
    return found;
  }
  void expect_nobody_left() const {
    for (int tries = 0; tries < 500 && !processes().empty(); ++tries) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(processes().empty());
  }
  /// The process that loads for the ranks, or -1 where it has ended before it was seen.
  static pid_t server_of(pid_t launcher) {
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (std::chrono::steady_clock::now() < end && test::ranks_of(launcher).empty()) {
      for (const auto& [pid, name] : test::children_of(launcher))
        if (name == "tessera-worker") return pid;
    }
    return -1;
  }

 private:
  test::FromDisk loads_;
};

/// KiB of a line of /proc/PID/smaps_rollup.
long kib(pid_t pid, const std::string& name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return std::atol(line.c_str() + name.size() + 1);
  return -1;
}

TEST_F(ForkServer, RanksShareWhatWasLoadedAndHaveTheirOwnCores) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  Subprocess run(endless({"--enable_cpu_affinity"}));
  ASSERT_TRUE(run.wait_for_output("'loss'", 120s)) << run.finish(0s).err;
  const auto ranks = test::ranks_of(run.pid());
  ASSERT_EQ(ranks.size(), 2u);
  cpu_set_t cores[2];
  for (const auto& [rank, pid] : ranks) {
    EXPECT_GT(kib(pid, "Anonymous") - kib(pid, "Pss_Anon"), 10 * 1024) << "of what is shared, half is the other rank's";
    ASSERT_EQ(::sched_getaffinity(pid, sizeof(cpu_set_t), &cores[rank]), 0);
  }
  if (CPU_COUNT(&all) >= 2) {
    cpu_set_t both;
    CPU_AND(&both, &cores[0], &cores[1]);
    EXPECT_EQ(CPU_COUNT(&both), 0);
  }
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(60s).exit_code, 128 + SIGTERM);
}

TEST_F(ForkServer, ASignalWhileItLoadsEndsTheRun) {
  for (const auto delay : {0ms, 40ms, 80ms, 120ms, 160ms, 240ms}) {
    std::filesystem::remove_all(folder_ + "/out");  // a run that trained by then has saved a checkpoint
    Subprocess run(endless());
    ASSERT_GT(server_of(run.pid()), 0) << "it loads for longer than it takes to find it";
    std::this_thread::sleep_for(delay);
    run.signal(SIGTERM);
    const Finished r = run.finish(60s);
    EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r.err;
    EXPECT_EQ(r.err.find("failed"), std::string::npos) << r.err;
    expect_nobody_left();
  }
}

TEST_F(ForkServer, WhenItIsKilledTheFirstRankFailed) {
  Subprocess run(endless());
  const pid_t server = server_of(run.pid());
  ASSERT_GT(server, 0);
  ::kill(server, SIGKILL);
  const Finished r = run.finish(60s);
  EXPECT_EQ(r.exit_code, 128 + SIGKILL);
  EXPECT_SAYS(r.err, "rank 0 failed with signal 9");
  expect_nobody_left();
}

TEST_F(ForkServer, NobodyOutlivesALauncherThatIsKilledWhileItLoads) {
  for (const auto delay : {0ms, 60ms, 120ms, 180ms, 240ms}) {
    Subprocess run(endless());
    ASSERT_GT(server_of(run.pid()), 0);
    std::this_thread::sleep_for(delay);
    run.signal(SIGKILL);
    EXPECT_EQ(run.finish(60s).exit_code, 128 + SIGKILL);
    expect_nobody_left();
  }
}

TEST_F(ForkServer, RanksThatStartAgainAreCopiesOfANewOne) {
  Subprocess run(endless({"--max_restarts", "1"}));
  ASSERT_TRUE(run.wait_for_output("'loss'", 120s)) << run.finish(0s).err;
  const auto first = test::ranks_of(run.pid());
  ::kill(first.at(1), SIGKILL);
  std::map<int, pid_t> second;
  for (int tries = 0; tries < 3000 && (second.size() < 2 || second.at(0) == first.at(0)); ++tries) {
    std::this_thread::sleep_for(10ms);
    second = test::ranks_of(run.pid());
  }
  ASSERT_EQ(second.size(), 2u);
  EXPECT_NE(second.at(0), first.at(0));
  EXPECT_GT(kib(second.at(1), "Anonymous") - kib(second.at(1), "Pss_Anon"), 10 * 1024);
  run.signal(SIGTERM);
  const Finished r = run.finish(60s);
  EXPECT_EQ(r.exit_code, 128 + SIGTERM) << r.err;
}

}  // namespace
}  // namespace tessera
