// `tessera launch` with users' own programs: what happens to ranks, signals, output and orphans.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Finished;
using test::Subprocess;

const std::string kConfigs = test::kTestData + "/config/";

std::vector<std::string> launch(const std::vector<std::string>& flags, const std::string& script) {
  std::vector<std::string> command = {TESSERA_BINARY, "launch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

Finished run_launch(const std::vector<std::string>& flags, const std::string& script) {
  return test::run(launch(flags, script), {{"HF_HOME", "/nonexistent"}});
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The pid that a script prints as "pid=N".
pid_t printed_pid(const std::string& out) {
  return std::atoi(out.substr(out.find("pid=") + 4).c_str());
}

bool ends_within(pid_t pid, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < end) {
    // A zombie that nobody reaps (containers without an init) has ended, too.
    const std::string stat = read("/proc/" + std::to_string(pid) + "/stat");
    if (stat.empty() || contains(stat, ") Z ")) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

/// Of two machines on this one, one rank each.
std::vector<std::string> launch_machine(int machine, int port, const std::string& script) {
  return launch(
      {"--cpu", "--tee", "1", "--num_processes", "2", "--num_machines", "2", "--machine_rank", std::to_string(machine),
       "--main_process_ip", "127.0.0.1", "--main_process_port", std::to_string(port), "--max_restarts", "1"},
      script);
}

TEST(Launch, GivesRanksTorchrunsAndAcceleratesVariables) {
  const Finished r =
      run_launch({"--config_file", kConfigs + "lora_seq2seq.yaml", "--tee", "1", "--main_process_port", "4711"},
                 "echo $RANK/$LOCAL_RANK/$WORLD_SIZE/$LOCAL_WORLD_SIZE/$GROUP_RANK $MASTER_ADDR:$MASTER_PORT "
                 "$FSDP_TRANSFORMER_CLS_TO_WRAP $ACCELERATE_USE_FSDP ${TORCHELASTIC_RUN_ID:+id}");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "[rank 0]: 0/0/2/2/0 127.0.0.1:4711 T5Block true id\n")) << r.out;
  EXPECT_TRUE(contains(r.out, "[rank 1]: 1/1/2/2/0 127.0.0.1:4711 T5Block true id\n")) << r.out;
}

TEST(Launch, StartsThisMachinesShareOfTheRanks) {
  const Finished r = run_launch({"--num_processes", "6", "--num_machines", "3", "--machine_rank", "1",
                                 "--main_process_ip", "10.1.2.3", "--tee", "1"},
                                "echo $RANK/$LOCAL_RANK/$WORLD_SIZE/$LOCAL_WORLD_SIZE/$GROUP_RANK/$GROUP_WORLD_SIZE "
                                "$MASTER_ADDR:$MASTER_PORT");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "[rank 2]: 2/0/6/2/1/3 10.1.2.3:29500\n")) << r.out;
  EXPECT_TRUE(contains(r.out, "[rank 3]: 3/1/6/2/1/3 10.1.2.3:29500\n")) << r.out;
  EXPECT_TRUE(contains(r.err, "machine 1 of 3: ranks 2 to 3 of 6 run here")) << r.err;
}

TEST(Launch, PicksAFreePortThatAllRanksShare) {
  const Finished r = run_launch({"--num_processes", "2", "-t", "1"}, "echo port=$MASTER_PORT");
  const std::string line = r.out.substr(r.out.find("port="), r.out.find('\n') - r.out.find("port="));
  EXPECT_GT(std::atoi(line.substr(5).c_str()), 0) << r.out;
  EXPECT_EQ(count(r.out, line), 2) << r.out;
}

TEST(Launch, PassesRankZeroThroughAndDropsTheOthersOutput) {
  const Finished r = run_launch({"--num_processes", "2", "--cpu"}, "echo out$RANK; echo err$RANK >&2");
  EXPECT_EQ(r.out, "out0\n");
  EXPECT_TRUE(contains(r.err, "err0\n"));
  EXPECT_FALSE(contains(r.err, "err1")) << r.err;
}

/// `limit`: options of the shell's ulimit.
Finished launch_many(const std::string& limit, int ranks) {
  return test::run({"/bin/sh", "-c",
                    "ulimit " + limit + " && exec " + TESSERA_BINARY + " launch --cpu --num_processes " +
                        std::to_string(ranks) + " /bin/sh -c 'ulimit -Sn'"});
}

TEST(Launch, TakesAllOpenFilesThatTheSystemAllowsAndLeavesProgramsTheirLimit) {
  const Finished r = launch_many("-Sn 256", 100);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "256\n");
}

TEST(Launch, NamesTheLimitThatDoesNotAllowSoManyRanks) {
  const Finished r = launch_many("-n 256", 100);
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_TRUE(contains(r.err, "100 ranks on this machine need 364 open files, and the system allows 256 (ulimit -n)"))
      << r.err;
}

TEST(Launch, WritesLogFilesOfEachRank) {
  const std::string folder = testing::TempDir() + "launch_logs";
  std::filesystem::remove_all(folder);
  const Finished r = run_launch({"--num_processes", "2", "--log_dir", folder}, "echo out$RANK; printf err$RANK >&2");
  EXPECT_EQ(r.out, "out0\n");
  EXPECT_EQ(read(folder + "/rank_1/stdout.log"), "out1\n");
  EXPECT_EQ(read(folder + "/rank_1/stderr.log"), "err1");
  EXPECT_EQ(read(folder + "/rank_0/stdout.log"), "out0\n");
}

TEST(Launch, NamesTheFailedRankItsCodeAndItsLastLines) {
  const auto begin = std::chrono::steady_clock::now();
  const Finished r = run_launch({"--num_processes", "3"}, "[ $RANK = 1 ] || exec sleep 60; echo why >&2; exit 7");
  EXPECT_EQ(r.exit_code, 7);
  EXPECT_TRUE(contains(r.err, "[rank 1]: why\n")) << r.err;
  EXPECT_TRUE(contains(r.err, "rank 1 failed with exit code 7; the other ranks were ended with it")) << r.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
}

TEST(Launch, NamesTheSignalOfAKilledRank) {
  const Finished r = run_launch({"--num_processes", "2"}, "[ $RANK = 0 ] && kill -9 $$; exec sleep 60");
  EXPECT_EQ(r.exit_code, 137);
  EXPECT_TRUE(
      contains(r.err, "rank 0 failed with signal 9 (SIGKILL: perhaps out of memory); the other rank was ended with it"))
      << r.err;
}

TEST(Launch, RanksHaveTimeToSayWhatTheyWereDoingWhenAnotherIsKilled) {
  const Finished r = run_launch({"--num_processes", "2"},
                                "[ $RANK = 1 ] && kill -9 $$; sleep 0.7; echo lost rank 1 in a gather >&2; exit 5");
  EXPECT_EQ(r.exit_code, 137);
  EXPECT_TRUE(contains(r.err, "lost rank 1 in a gather")) << r.err;
  EXPECT_TRUE(contains(r.err, "rank 1 failed with signal 9")) << r.err;
}

TEST(Launch, BlamesRankZeroWhereAllFailAlike) {
  const Finished r = run_launch({"--num_processes", "2"}, "[ $RANK = 0 ] && sleep 0.05; echo bad flag >&2; exit 2");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_EQ(count(r.err, "bad flag"), 1) << r.err;
  EXPECT_TRUE(contains(r.err, "rank 0 failed with exit code 2")) << r.err;
}

TEST(Launch, KillsRanksThatIgnoreTheRequestToEnd) {
  const Finished r = run_launch({"--num_processes", "2"},
                                "[ $RANK = 1 ] && { sleep 0.3; exit 4; }; trap '' TERM; while :; do sleep 0.1; done");
  EXPECT_EQ(r.exit_code, 4) << r.err;
}

TEST(Launch, StartsAllRanksAgainAfterAFailure) {
  const Finished r = run_launch({"--num_processes", "2", "--max_restarts", "2"},
                                "echo try=$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "try=0\ntry=1\ntry=2\n")) << r.out;
}

TEST(Launch, ForwardsTheFirstInterruptAndLetsRanksEndInPeace) {
  Subprocess p(
      launch({"--num_processes", "2"}, "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(200ms);  // rank 1 sets its trap unseen
  p.signal(SIGINT);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_TRUE(contains(r.out, "saved")) << r.out << r.err;
}

TEST(Launch, ForwardsTermination) {
  Subprocess p(
      launch({"--num_processes", "2"}, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(200ms);
  p.signal(SIGTERM);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 143);
  EXPECT_TRUE(contains(r.out, "saved")) << r.out << r.err;
}

TEST(Launch, TheSecondInterruptEndsTheRanksAtOnce) {
  std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"};
  for (const std::string& word :
       launch({"--num_processes", "2"}, "trap '' INT TERM; echo pid=$$; echo ready; while :; do sleep 0.05; done"))
    command.push_back(word);
  Subprocess p(command);
  ASSERT_TRUE(p.wait_for_output("ready"));
  p.signal(SIGINT);
  ASSERT_TRUE(p.wait_for_output("SIGINT: passed on, waiting for the ranks to end (press Ctrl-C again"));
  std::this_thread::sleep_for(200ms);
  const auto begin = std::chrono::steady_clock::now();
  p.signal(SIGINT);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_TRUE(ends_within(printed_pid(r.out), 2s));
}

/// `timeout` signals its child and then the child's group.
TEST(Launch, TakesSignalsOneRightAfterTheOtherForOneRequest) {
  Subprocess p(launch({"--num_processes", "2"},
                      "trap 'sleep 0.5; echo saved; exit 0' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(200ms);
  p.signal(SIGINT);
  std::this_thread::sleep_for(5ms);
  p.signal(SIGINT);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_TRUE(contains(r.out, "saved")) << r.out << r.err;
}

TEST(Launch, GivesRanksTheTimeThatTheUserGrants) {
  const std::string slow = "trap 'sleep 1; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
  for (const bool limited : {false, true}) {
    std::vector<std::string> flags = {"--num_processes", "2"};
    if (limited) flags.insert(flags.end(), {"--grace_period", "0.2"});
    Subprocess p(launch(flags, slow));
    ASSERT_TRUE(p.wait_for_output("ready"));
    std::this_thread::sleep_for(200ms);
    p.signal(SIGTERM);
    const Finished r = p.finish();
    EXPECT_EQ(r.exit_code, 143);
    EXPECT_EQ(contains(r.out, "saved"), !limited) << r.out << r.err;
    EXPECT_TRUE(contains(
        r.err, limited ? "waiting up to 0.2 s for the ranks" : "SIGTERM: passed on, waiting for the ranks to end"))
        << r.err;
  }
  EXPECT_EQ(run_launch({"--grace_period", "-1"}, "true").exit_code, 2);
}

TEST(Launch, NamesTheRankThatASignalEndedAndNotThoseThatLostIt) {
  // Rank 0 and 2 end first, as tasks that notice the loss of another do.
  const Finished r =
      run_launch({"--num_processes", "3"}, "[ $RANK = 1 ] || exit 5; sleep 0.5; kill -TERM $$; sleep 60");
  EXPECT_EQ(r.exit_code, 143);
  EXPECT_TRUE(contains(r.err, "rank 1 failed with signal 15 (SIGTERM); the other ranks were ended with it")) << r.err;
}

TEST(Launch, SaysWhichRankDidNotEndWellAfterASignal) {
  Subprocess p(launch({"--num_processes", "2", "--tee", "3"},
                      "trap '[ $RANK = 1 ] && exit 4; exit 0' TERM; echo ready $RANK; while :; do sleep 0.05; done"));
  for (const char* rank : {"ready 0", "ready 1"}) ASSERT_TRUE(p.wait_for_output(rank));
  std::this_thread::sleep_for(200ms);
  p.signal(SIGTERM);
  const Finished r = p.finish();
  EXPECT_EQ(r.exit_code, 143);
  EXPECT_TRUE(contains(r.err, "rank 1 failed with exit code 4")) << r.err;
}

TEST(Launch, OutlivesTheReaderOfItsOutput) {
  Subprocess p(launch({"--num_processes", "2", "--tee", "3"},
                      "trap 'exit 0' TERM; echo ready; while :; do echo more; sleep 0.05; done"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  std::this_thread::sleep_for(200ms);
  p.stop_reading();
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(p.running());
  p.signal(SIGTERM);
  EXPECT_EQ(p.finish().exit_code, 143);
}

TEST(Launch, LetsThreadsThatWaitSleepSoonUnlessTheUserHasChosen) {
  const std::string show = "echo spins=$GOMP_SPINCOUNT policy=$OMP_WAIT_POLICY";
  const auto run = [&](const test::Variables& environment) {
    std::vector<std::string> words = launch({"--num_processes", "1"}, show);
    words.insert(words.begin(), {"/usr/bin/env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"});
    for (const auto& [name, value] : environment) words.insert(words.begin() + 5, name + "=" + value);
    return test::run(words).out;
  };
  EXPECT_EQ(run({}), "spins=3000 policy=\n");
  EXPECT_EQ(run({{"OMP_WAIT_POLICY", "active"}}), "spins= policy=active\n");
  EXPECT_EQ(run({{"GOMP_SPINCOUNT", "7"}}), "spins=7 policy=\n");
}

TEST(Launch, LeavesNoOrphanWhenItIsKilled) {
  Subprocess p(launch({"--num_processes", "2"}, "sleep 600 & echo pid=$!; echo ready; wait"));
  ASSERT_TRUE(p.wait_for_output("ready"));
  p.signal(SIGKILL);
  const Finished r = p.finish(20s);
  EXPECT_EQ(r.exit_code, 137);
  EXPECT_TRUE(ends_within(printed_pid(r.out), 5s)) << "a grandchild outlived the launcher";
}

TEST(Launch, EndsWhatRanksLeaveRunning) {
  const Finished r = run_launch({"--num_processes", "2"}, "sleep 600 >/dev/null 2>&1 & echo pid=$!");
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(ends_within(printed_pid(r.out), 2s));
}

TEST(Launch, BindsRanksToDisjointCoresWhereThereAreEnough) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  if (CPU_COUNT(&mask) < 2) GTEST_SKIP() << "one core";
  const Finished r = run_launch({"--num_processes", "2", "-t", "1", "--enable_cpu_affinity"},
                                "grep Cpus_allowed: /proc/self/status | cut -f2 | tr -d ,");
  unsigned long long bits[2] = {0, 0};
  for (int rank = 0; rank < 2; ++rank) {
    const std::string prefix = "[rank " + std::to_string(rank) + "]: ";
    ASSERT_TRUE(contains(r.out, prefix)) << r.err;
    const std::string hex = r.out.substr(r.out.find(prefix) + prefix.size());
    bits[rank] = std::strtoull(hex.substr(hex.find('\n') > 16 ? hex.find('\n') - 16 : 0).c_str(), nullptr, 16);
  }
  if (CPU_COUNT(&mask) <= 64) {
    EXPECT_NE(bits[0], 0u);
    EXPECT_EQ(bits[0] & bits[1], 0u) << r.out;
  }
}

TEST(Launch, SaysOnceWhatAHostWithoutAGpuMakesOfTheGuidesFile) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "this host has a GPU";
  const Finished r = run_launch({"--config_file", kConfigs + "lora_seq2seq.yaml"}, "true");
  EXPECT_EQ(count(r.err, "no GPU found: running on the CPU"), 1) << r.err;
  EXPECT_EQ(count(r.err, "parameters are in host memory already"), 1) << r.err;
}

TEST(Launch, WarnsOnceAboutUnindentedLines) {
  const Finished r = run_launch({"--config_file", kConfigs + "sft_lora_unindented.yaml", "--num_processes", "1"},
                                "echo $FSDP_STATE_DICT_TYPE");
  EXPECT_EQ(r.out, "SHARDED_STATE_DICT\n");
  EXPECT_EQ(count(r.err, "understood as part of fsdp_config"), 1) << r.err;
}

/// A machine whose ranks compute for long without a word to the others is there all the same.
TEST(Launch, StartsAgainOnAllMachinesHoweverLongTheRanksOfOneCompute) {
  for (const int failing : {0, 1}) {
    const int port = 20000 + (::getpid() * 2 + failing) % 9000;
    const std::string rank = std::to_string(failing);
    const std::string script = "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = " + rank +
                               " ] && exit 3; exec sleep 100; fi; echo rank $RANK of $WORLD_SIZE";
    const test::Variables soon = {{"TESSERA_KEEPALIVE_S", "1"}, {"TESSERA_SECRET", "the secret of this test"}};
    Subprocess zero(launch_machine(0, port, script), soon), one(launch_machine(1, port, script), soon);
    const Finished first = zero.finish(60s), second = one.finish(60s);
    EXPECT_EQ(first.exit_code, 0) << first.err;
    EXPECT_EQ(second.exit_code, 0) << second.err;
    EXPECT_TRUE(contains(first.out, "rank 0 of 2")) << failing << first.out << first.err;
    EXPECT_TRUE(contains(second.out, "rank 1 of 2")) << failing << second.out << second.err;
    const std::string& called = failing == 0 ? second.err : first.err;
    EXPECT_TRUE(contains(called, "ranks of another machine have failed: ending those here")) << called;
  }
}

/// As `trl sft --config sft.yaml` does, whose file names the number of processes.
TEST(Launch, ATrainingTaskThatNamesRanksIsStartedOnThem) {
  const std::string file = testing::TempDir() + "ranks_of_task_" + std::to_string(::getpid()) + ".yaml";
  std::ofstream(file) << "model_name_or_path: /nonexistent/model\ndataset_name: rows.jsonl\nnum_processes: 2\n";
  const Finished r =
      test::run({TESSERA_BINARY, "sft", "--config", file, "--log_dir", file + ".logs"}, {{"HF_HOME", "/nonexistent"}});
  EXPECT_NE(r.exit_code, 0);
  for (const char* rank : {"0", "1"}) {
    const std::string said = read(file + ".logs/rank_" + rank + "/stderr.log");
    EXPECT_TRUE(contains(said, "'/nonexistent/model'")) << said;
    EXPECT_FALSE(contains(said, "num_processes")) << said;
  }
}

}  // namespace
}  // namespace tessera
