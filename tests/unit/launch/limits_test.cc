#include "launch/limits.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "launch/launch.h"
#include "support/few_files.h"
#include "support/program.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

std::string refusal(int ranks, const OutputOptions& output, const Limits& limits) {
  try {
    require_room(ranks, output, limits);
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.key, "num_processes");
    return e.what();
  }
  return "none";
}

TEST(Limits, OfOpenFilesIsNamedWithWhatTheRanksNeed) {
  EXPECT_EQ(refusal(300, {}, {.open_files = 1024}), "none");
  EXPECT_SAYS(refusal(400, {}, {.open_files = 1024}),
              "400 ranks on this machine need 1264 open files, and the system allows 1024 (ulimit -n)");
  EXPECT_SAYS(refusal(300, {.tee_stdout = true, .log_dir = ""}, {.open_files = 1024}), "need 1264 open files");
  EXPECT_SAYS(refusal(300, {.log_dir = "logs"}, {.open_files = 1024}), "need 1864 open files");
}

TEST(Limits, OfProcessesIsNamedWithWhatTheRanksNeed) {
  EXPECT_EQ(refusal(1000, {}, {.processes = 2000}), "none");
  EXPECT_SAYS(refusal(200'000, {}, {.processes = 2000}),
              "200000 ranks on this machine need 200003 processes, and the system allows 2000 (ulimit -u)");
  EXPECT_SAYS(why_no_process(EAGAIN), "ulimit -u");
}

TEST(Limits, AreCheckedBeforeAnythingStarts) {
  const test::FewFiles few(500);
  try {
    (void)plan_launch({"--cpu", "--num_machines", "2", "--main_process_ip", "10.0.0.1", "--machine_rank", "1",
                       "--num_processes", "400000", "sft"},
                      {{"sft"}, "/bin/true"});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()), "200000 ranks on this machine need 600064 open files");
  }
}

}  // namespace
}  // namespace tessera::launch
