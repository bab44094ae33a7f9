// What support/loaded_programs.h promises to all tests that start the programs: they do as those from their files do.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/file.h"
#include "support/loaded_programs.h"
#include "support/ranks.h"
#include "support/sft_job.h"

namespace tessera {
namespace {

using test::Finished;
using test::FromDisk;
using test::Subprocess;
using test::Words;
using test::operator+;

class LoadedPrograms : public test::SftJob {
 protected:
  LoadedPrograms() : SftJob("loaded_programs") {}
};

TEST_F(LoadedPrograms, TrainAsThoseFromTheirFiles) {
  for (const int ranks : {1, 2}) {
    std::optional<FromDisk> from_disk;
    Finished runs[2];
    for (Finished& run : runs) {
      run = sft(ranks, "model", from_disk ? "files" : "loaded", {"--max_steps", "3", "--bf16", "true"});
      EXPECT_EQ(run.exit_code, 0) << run.err;
      from_disk.emplace();
    }
    EXPECT_EQ(runs[0].err, runs[1].err);
    EXPECT_EQ(losses("loaded"), losses("files"));
    EXPECT_EQ(losses("loaded").size(), 3u);
    EXPECT_TRUE(read_file(folder_ + "/loaded/model.safetensors") == read_file(folder_ + "/files/model.safetensors"));
    for (const char* out : {"/loaded", "/files"}) std::filesystem::remove_all(folder_ + out);
  }
}

/// What was said, whichever of two ranks failed first.
std::string of_any_rank(std::string said) {
  for (const auto& [from, to] : {std::pair("[rank 1]: ", ""), std::pair("rank 1 failed", "rank 0 failed")})
    if (const auto at = said.find(from); at != std::string::npos) said.replace(at, std::strlen(from), to);
  return said;
}

TEST_F(LoadedPrograms, FailAsThoseFromTheirFiles) {
  const std::vector<Words> commands = {{"no-task"},
                                       {"sft", "--no_flag", "1"},
                                       {"inspect", folder_ + "/nothing"},
                                       {"launch", "--cpu", "--num_processes", "2", "inspect", folder_ + "/nothing"}};
  for (const Words& words : commands) {
    const Finished loaded = test::run(Words{TESSERA_BINARY} + words);
    const FromDisk from_disk;
    const Finished from_file = test::run(Words{TESSERA_BINARY} + words);
    EXPECT_NE(loaded.exit_code, 0) << words[0];
    EXPECT_EQ(loaded.exit_code, from_file.exit_code) << words[0];
    EXPECT_EQ(loaded.out, from_file.out) << words[0];
    EXPECT_EQ(of_any_rank(loaded.err), of_any_rank(from_file.err)) << words[0];
  }
}

#ifdef TESSERA_HOLDS_PROGRAMS  // sanitizers' programs do not
// Else all tests would be slow, and none would say so.
TEST_F(LoadedPrograms, AreNotLoadedAgain) {
  if (!std::getenv("OMP_WAIT_POLICY")) GTEST_SKIP() << "the programs choose how libgomp waits, which it reads once";
  for (const bool loaded : {true, false}) {
    std::optional<FromDisk> from_disk;
    if (!loaded) from_disk.emplace();
    Subprocess run(
        Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2"} +
        test::sft_words(folder_ + "/model", test::kTinyChat, folder_, "out") +
        Words{"--max_steps", "100000", "--logging_steps", "1", "--save_strategy", "no", "--overwrite_output_dir"});
    ASSERT_TRUE(run.wait_for_output("'loss'")) << run.finish(std::chrono::seconds(0)).err;
    const auto ranks = test::ranks_of(run.pid());
    EXPECT_EQ(ranks.size(), 2u);
    for (const auto& [rank, pid] : ranks) {
      const auto program = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe").filename();
      EXPECT_EQ(program, loaded ? "test_process" : "tessera-worker");
    }
    run.signal(SIGKILL);
    run.finish();
  }
}
#endif

}  // namespace
}  // namespace tessera
