// Ranks that do not do the same: one stands still, is slow, ends early, has other weights, rows in another order.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/program.h"
#include "support/ranks.h"
#include "support/sft_job.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;
using test::Words;
using test::operator+;

class Divergence : public test::SftJob {
 protected:
  Divergence() : SftJob("divergence") {}

  Words flags(const Words& more) const {
    return test::sft_words(folder_ + "/model", test::kTinyChat, folder_, "out") +
           Words{"--max_seq_length", "64", "--print_model", "false", "--save_strategy", "no"} + more;
  }
  static Words launched(int ranks, const Words& words) {
    return Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)} + words;
  }
  /// `more` counts for rank 1 alone.
  Finished with_another_rank_1(const Words& more, const Words& all = {}) const {
    std::string differs;
    for (const auto& word : more) differs += " '" + word + "'";
    const std::string script = "if [ $RANK = 1 ]; then set -- \"$@\"" + differs + "; fi; exec \"$0\" \"$@\"";
    return test::run(launched(2, {"/bin/sh", "-c", script, TESSERA_BINARY}) +
                         flags(Words{"--max_steps", "4", "--per_device_train_batch_size", "2"} + all),
                     {{"TESSERA_COMM_TIMEOUT_S", "20"}});
  }
  std::string status_with(const std::string& text) const {
    std::string said;
    for (int tries = 0; tries < 100 && said.find(text) == std::string::npos; ++tries) {
      std::this_thread::sleep_for(100ms);
      said = test::run({TESSERA_BINARY, "status", folder_ + "/out"}).out;
    }
    return said;
  }
};

TEST_F(Divergence, ARankThatStandsStillIsNamedWithWhatEachRankWaitsFor) {
  Subprocess run(launched(3, flags({"--max_steps", "100000", "--logging_steps", "1"})),
                 {{"TESSERA_COMM_TIMEOUT_S", "2"}});
  ASSERT_TRUE(run.wait_for_output("'loss'", 60s)) << run.finish(0s).err;
  const auto victim = test::ranks_of(run.pid()).at(1);
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  const auto stopped = std::chrono::steady_clock::now();
  const std::string said = status_with("The others wait for rank 1");
  const Finished r = run.finish(60s);
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, 2s + 10s);
  EXPECT_EQ(r.exit_code, 5) << r.err;
  for (const std::string& text : {r.err, said}) {  // unit, operation, step, rows: of the rank that waits and of the one
    EXPECT_SAYS(text, "rank 1");
    EXPECT_SAYS(text, "operation ");
    EXPECT_SAYS(text, "step ");
    EXPECT_SAYS(text, "row");
  }
  EXPECT_SAYS(r.err, "no progress for 2000 ms: rank 1 has ");
  const auto of_others = r.err.find("; rank 2 has ", r.err.find("no progress for 2000 ms: rank 1 has "));
  const auto of_rank_0 = r.err.find("; rank 0 has ", r.err.find("no progress for 2000 ms: rank 1 has "));
  EXPECT_TRUE(of_others != std::string::npos || of_rank_0 != std::string::npos) << r.err;
  EXPECT_SAYS(said, "which is stopped by a signal; 'kill -CONT " + std::to_string(victim) + "' lets it go on");
}

TEST_F(Divergence, ARankThatIsSlowIsWaitedForAndNamedByStatus) {
  Subprocess run(launched(2, flags({"--max_steps", "100000", "--logging_steps", "1"})));
  ASSERT_TRUE(run.wait_for_output("'loss'", 60s)) << run.finish(0s).err;
  const auto victim = test::ranks_of(run.pid()).at(1);
  std::string said;
  for (int tries = 0; tries < 20 && said.find("The others wait for rank 1") == std::string::npos; ++tries) {
    ::kill(victim, SIGSTOP);
    std::this_thread::sleep_for(400ms);
    said = test::run({TESSERA_BINARY, "status", folder_ + "/out"}).out;
    ::kill(victim, SIGCONT);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_SAYS(said, "The others wait for rank 1");
  EXPECT_SAYS(said, "; waits for rank 1 for ");
  EXPECT_TRUE(run.running());
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(60s).exit_code, 128 + SIGTERM);
}

TEST_F(Divergence, OtherWeightsOnOneRankAreFound) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kTinyChat, folder_ + "/other", "--seed", "7"}).exit_code, 0);
  const Finished r = with_another_rank_1({"--model_name_or_path", folder_ + "/other"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "ranks 0 and 1 read different weights: '");
}

TEST_F(Divergence, RowsInAnotherOrderOnOneRankAreFoundInTheFirstStep) {
  const Finished r = with_another_rank_1({"--seed", "7"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "step 1: ranks do not take the same step: rank 0 has ");
  EXPECT_SAYS(r.err, "--seed among them");
}

TEST_F(Divergence, ARankThatWouldEndEarlyIsFoundInTheFirstStep) {
  const Finished r = with_another_rank_1({"--max_steps", "3"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, " and 4 in all; rank 1 has ");
  EXPECT_SAYS(r.err, " and 3 in all. Give all ranks the same");
}

TEST_F(Divergence, AnotherAccumulationOnOneRankIsFoundInTheFirstStep) {
  const Finished r = with_another_rank_1({"--gradient_accumulation_steps", "2"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "step 1: ranks do not take the same step: rank 0 has ");
}

}  // namespace
}  // namespace tessera
