// `tessera status` beside a run whose rank stands still, and after its end.
#include <gtest/gtest.h>

#include <fstream>

#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "support/terminal.h"

namespace tessera {
namespace {

using test::Finished;
using test::Subprocess;

class StatusOfRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kTinyChat, in("model")}).exit_code, 0);
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string status() const {
    const Finished r = test::run({TESSERA_BINARY, "status", in("out")});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  }
  /// Until it says this, for at most ten seconds.
  std::string status_with(const std::string& text) const {
    std::string said;
    for (int tries = 0; tries < 100 && said.find(text) == std::string::npos; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      said = status();
    }
    return said;
  }
  static int process_of(const std::string& said, int rank) {
    const auto at = said.find("rank " + std::to_string(rank) + " (process ");
    return at == std::string::npos ? 0 : std::atoi(said.c_str() + at + 16);
  }
  test::TempFolder folder_{"status"};
};

TEST_F(StatusOfRuns, NamesTheRankThatStandsStillAndWhatTheOthersWaitIn) {
  Subprocess run({TESSERA_BINARY,
                  "launch",
                  "--cpu",
                  "--num_processes",
                  "2",
                  "sft",
                  "--model_name_or_path",
                  in("model"),
                  "--dataset_name",
                  test::kTinyChat,
                  "--output_dir",
                  in("out"),
                  "--max_steps",
                  "100000",
                  "--dataset_cache_dir",
                  in("cache"),
                  "--max_seq_length",
                  "64",
                  "--print_model",
                  "false"});
  ASSERT_TRUE(run.wait_for_output("Running training"));
  const std::string before = status_with("the last step took");
  EXPECT_NE(before.find(" of 100000, 2 ranks\n"), std::string::npos) << before;
  const int victim = process_of(before, 1);
  ASSERT_GT(victim, 0) << before;
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  // Rank 0 waits for rank 1 now and then while that still works, too.
  const std::string said = status_with("is stopped by a signal; 'kill");
  EXPECT_NE(said.find("The others wait for rank 1, which is stopped by a signal; 'kill -CONT " +
                      std::to_string(victim) + "' lets it go on\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("; waits for rank 1 for "), std::string::npos) << said;
  EXPECT_NE(said.find(" in operation "), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 (process " + std::to_string(victim) + ", is stopped by a signal, "), std::string::npos)
      << said;
  EXPECT_NE(said.find("; row"), std::string::npos) << said;
  ::kill(victim, SIGCONT);
  run.signal(SIGKILL);
  run.finish(std::chrono::seconds(20));
  const std::string after = status_with("no run goes on");
  EXPECT_NE(after.find("no run goes on; the last one ended before its end"), std::string::npos) << after;
}

TEST_F(StatusOfRuns, TellsOfARunOfOneProcessAndOfItsEnd) {
  Subprocess run({TESSERA_BINARY, "sft", "--model_name_or_path", in("model"), "--dataset_name", test::kTinyChat,
                  "--output_dir", in("out"), "--max_steps", "40", "--dataset_cache_dir", in("cache"),
                  "--max_seq_length", "64", "--print_model", "false"});
  ASSERT_TRUE(run.wait_for_output("Running training"));
  run.signal(SIGSTOP);
  const std::string said = status_with("is stopped by a signal");
  EXPECT_NE(said.find("rank 0 (process " + std::to_string(run.pid()) + ", is stopped by a signal"), std::string::npos)
      << said;
  run.signal(SIGCONT);
  ASSERT_EQ(run.finish().exit_code, 0);
  EXPECT_NE(status().find("the last one finished at step 40"), std::string::npos) << status();
}

TEST_F(StatusOfRuns, AWatchOnATerminalEndsWithTheRun) {
  Subprocess run({TESSERA_BINARY, "sft", "--model_name_or_path", in("model"), "--dataset_name", test::kTinyChat,
                  "--output_dir", in("out"), "--max_steps", "400", "--dataset_cache_dir", in("cache"),
                  "--logging_steps", "1", "--max_seq_length", "64", "--print_model", "false"});
  ASSERT_TRUE(run.wait_for_output("Running training"));
  test::OnTerminal watch({"watch", in("out"), "--interval", "0.1"});
  watch.wait_for(" of 400, ");
  watch.wait_for("loss ");
  watch.wait_for("rank 0 (process " + std::to_string(run.pid()));
  ASSERT_EQ(run.finish().exit_code, 0);
  watch.wait_for("100%  step 400 of 400");
  watch.wait_for("the run has ended");
  EXPECT_EQ(watch.wait_status(), 0);
}

TEST_F(StatusOfRuns, AWatchWithoutATerminalLooksOnce) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "sft", "--model_name_or_path", in("model"), "--dataset_name", test::kTinyChat,
                       "--output_dir", in("out"), "--max_steps", "2", "--dataset_cache_dir", in("cache"),
                       "--logging_steps", "1", "--max_seq_length", "64", "--print_model", "false"})
                .exit_code,
            0);
  const Finished once = test::run({TESSERA_BINARY, "watch", in("out") + "/"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_NE(once.out.find("100%  step 2 of 2"), std::string::npos) << once.out;
  EXPECT_EQ(once.out.find('\x1b'), std::string::npos) << "no control characters in files";
  const Finished nothing = test::run({TESSERA_BINARY, "watch", in("nothing")});
  EXPECT_NE(nothing.exit_code, 0);
  EXPECT_NE(nothing.err.find("'" + in("nothing") + "' is not a folder"), std::string::npos) << nothing.err;
}

}  // namespace
}  // namespace tessera
