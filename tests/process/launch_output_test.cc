// `tessera launch` where ranks write without pause, nobody reads, or whoever started it left it odd.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;
using test::Words;
using test::operator+;

/// With the shell's `redirections`, behind what it does `before`.
Words shell_launch(const Words& flags, const std::string& script, const std::string& redirections = "",
                   const std::string& before = "") {
  const Words shell = {"/bin/sh", "-c", before + " exec \"$0\" \"$@\" " + redirections, TESSERA_BINARY, "launch"};
  return shell + flags + Words{"/bin/sh", "-c", script};
}

Finished run_shell_launch(const Words& flags, const std::string& script, const std::string& redirections = "",
                          const std::string& before = "") {
  return test::run(shell_launch(flags, script, redirections, before), {{"HF_HOME", "/nonexistent"}});
}

/// Without reading what it says.
bool ends_unread(const Subprocess& p, std::chrono::milliseconds time) {
  siginfo_t info{};
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
    if (::waitid(P_PID, static_cast<id_t>(p.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST(LaunchOutput, ASignalIsHeardWhileARankWritesWithoutPause) {
  Subprocess p(shell_launch({"--tee", "1"}, "echo ready >&2; exec yes", ">/dev/null 2>&1"));
  std::this_thread::sleep_for(500ms);
  p.signal(SIGTERM);
  EXPECT_TRUE(ends_unread(p, 10s));
  EXPECT_EQ(p.finish(0s).exit_code, 143);
}

TEST(LaunchOutput, AFailureIsNoticedBesideARankThatWritesWithoutPause) {
  const auto begin = std::chrono::steady_clock::now();
  const Finished r =
      run_shell_launch({"--num_processes", "2", "--tee", "1"}, "[ $RANK = 1 ] && exit 7; exec yes", ">/dev/null");
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_SAYS(r.err, "rank 1 failed with exit code 7");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// The ranks go on to their end.
TEST(LaunchOutput, AFullDiskIsAnErrorAtTheEnd) {
  const test::TempFolder folder("launch_full");
  const std::string done = folder.path() + "/done";
  const Finished r =
      run_shell_launch({"--num_processes", "2", "--tee", "1"}, "echo a; echo b; touch " + done + "$RANK", ">/dev/full");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_SAYS(r.err, "stdout of the ranks is not whole: No space left on device");
  for (const char* rank : {"0", "1"}) EXPECT_TRUE(std::filesystem::exists(done + rank));
}

TEST(LaunchOutput, AFileThatMayNotGrowIsAnErrorAtTheEnd) {
  const test::TempFolder folder("launch_limited");
  const std::string done = folder.path() + "/done";
  const Finished r =
      run_shell_launch({"--num_processes", "2", "--log_dir", folder.path() + "/logs"},
                       "ulimit -f unlimited; seq 10000; touch " + done + "$RANK", ">/dev/null", "ulimit -S -f 8;");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_SAYS(r.err, "logs' has of the ranks is not whole: File too large");
  for (const char* rank : {"0", "1"}) EXPECT_TRUE(std::filesystem::exists(done + rank));
}

TEST(LaunchOutput, AReaderWhoStandsStillDoesNotHoldTheLauncher) {
  Subprocess p(shell_launch({"--tee", "3"}, "echo ready; exec yes", "2>&1"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(300ms);
  p.signal(SIGTERM);
  EXPECT_TRUE(ends_unread(p, 10s));
  EXPECT_EQ(p.finish().exit_code, 143);
}

TEST(LaunchOutput, RanksThatAreAskedToEndDoNotWaitForAReader) {
  Subprocess p(
      shell_launch({"--tee", "1"}, "trap 'echo saved; exit 0' TERM; echo ready; while :; do echo $RANK; done"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(300ms);
  p.signal(SIGTERM);
  EXPECT_TRUE(ends_unread(p, 10s));
}

TEST(LaunchOutput, ComesWholeThroughAPipeThatIsReadSlowly) {
  Subprocess p(shell_launch({"--num_processes", "2", "--tee", "1"}, "seq 100000; echo end$RANK"));
  std::this_thread::sleep_for(500ms);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 200'002);
  for (const char* last : {"[rank 0]: end0\n", "[rank 1]: end1\n"}) EXPECT_NE(r.out.find(last), std::string::npos);
}

TEST(LaunchOutput, EndsWhereEndsOfChildrenWereIgnored) {
  const Finished r = run_shell_launch({}, "exit 3", "", "trap '' CHLD;");
  EXPECT_EQ(r.exit_code, 3) << r.err;
}

TEST(LaunchOutput, LogsAreTheRanksOwnWhereTheStandardStreamsAreClosed) {
  const test::TempFolder folder("launch_closed");
  const Finished r = run_shell_launch({"--log_dir", folder.path()}, "echo out; echo err >&2", "<&- >&- 2>&-");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(read_file(folder.path() + "/rank_0/stdout.log"), "out\n");
  EXPECT_EQ(read_file(folder.path() + "/rank_0/stderr.log"), "err\n");
}

TEST(LaunchOutput, LogsOfAFailedAttemptStay) {
  const test::TempFolder folder("launch_attempts");
  const Words flags = {"--max_restarts", "1", "--log_dir", folder.path()};
  for (int launches = 0; launches < 2; ++launches) {  // each begins anew
    const Finished r = run_shell_launch(flags, "echo try$TORCHELASTIC_RESTART_COUNT; exit 5");
    EXPECT_EQ(r.exit_code, 5) << r.err;
    EXPECT_EQ(read_file(folder.path() + "/rank_0/stdout.log"), "try0\n\n--- attempt 1 ---\ntry1\n");
  }
}

}  // namespace
}  // namespace tessera
