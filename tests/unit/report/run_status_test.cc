// `tessera status` on records that this process keeps, and on folders of runs that have ended.
#include "report/run_status.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rank_record.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

class Status : public ::testing::Test {
 protected:
  bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  test::TempFolder folder_{"status"};
};

TEST_F(Status, SaysWhatTheRanksDoAndForWhomTheOthersWait) {
  RankRecords records(2, 3, 8);  // the second host of a run of eight ranks
  for (int r = 0; r < 3; ++r) {
    records[r].folder.store(folder_mark(folder_.path()));
    records[r].process.store(::getpid());
    records[r].phase.set("forward and backward");
    records[r].set_activity("forward of unit 'layers." + std::to_string(r) + "'");
    records[r].begin_step(7, 30);
    records[r].rows.set("rows 12 3");
  }
  for (const int r : {0, 1}) {
    records[r].operation.set("operation 9, all_gather of 64 x Float");
    records[r].waiting_for.store(r == 0 ? 3 : 4);  // one for another, and that for the third
    records[r].waiting_since.store(steady_nanoseconds() - 4'000'000'000);
  }
  const RunStatus status = run_status(folder_.path() + "/.");
  ASSERT_EQ(status.ranks.size(), 3u);
  EXPECT_EQ(waited_for(status), std::vector<int>{4});
  const std::string text = describe(status);
  EXPECT_TRUE(has(text, "step 7 of 30, 8 ranks, 3 on this host")) << text;
  EXPECT_TRUE(has(text, "rank 2 (process " + std::to_string(::getpid()))) << text;
  EXPECT_TRUE(has(text, "forward of unit 'layers.2'")) << text;
  EXPECT_TRUE(has(text, "; rows 12 3")) << text;
  EXPECT_TRUE(has(text, "waits for rank 3 for 4")) << text;
  EXPECT_TRUE(has(text, " s in operation 9, all_gather of 64 x Float")) << text;
  EXPECT_TRUE(has(text, "The others wait for rank 4\n")) << text;
  EXPECT_TRUE(has(text, "run 'tessera status' there for theirs")) << text;
}

TEST_F(Status, OfARunThatHasEndedItSaysWhereAndHowToGoOn) {
  write_file_atomically(folder_.path() + "/.tessera.lock", "process 1 on host-a");
  write_file_atomically(folder_.path() + "/metrics.jsonl", "{\"loss\": 2.5, \"epoch\": 0.5, \"step\": 4}\n");
  ensure_writable_folder(folder_.path() + "/checkpoint-4");
  ensure_writable_folder(folder_.path() + "/checkpoint-10x");
  std::string text = describe(run_status(folder_.path()));
  EXPECT_TRUE(has(text,
                  "ended before its end, at step 4 or later; --resume_from_checkpoint true goes on from "
                  "checkpoint-4\n"))
      << text;
  write_file_atomically(folder_.path() + "/metrics.jsonl",
                        "{\"loss\": 2.5, \"step\": 4}\n{\"train_runtime\": 3.0, \"train_loss\": 2.5, \"step\": 8}\n");
  text = describe(run_status(folder_.path()));
  EXPECT_TRUE(has(text, "the last one finished at step 8")) << text;
}

TEST_F(Status, AFolderThatIsNoRunsIsRefused) {
  EXPECT_THROW(run_status(folder_.path()), DataError);
  EXPECT_THROW(run_status(folder_.path() + "/nowhere"), DataError);
}

}  // namespace
}  // namespace tessera::report
