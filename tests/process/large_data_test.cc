// A data set may be larger than memory: what a process holds for itself does not grow with the files.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "support/program.h"
#include "support/sft_job.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using test::kMiB;
using test::kTinyChat;
using test::operator+;

/// Rows of 2 KiB, of which 200 bytes are text to learn.
void write_rows(const std::string& file, std::int64_t bytes) {
  std::ofstream out(file, std::ios::binary);
  const std::string unused(1800, 'x');
  for (std::int64_t row = 0; out.tellp() < bytes; ++row) {
    out << R"({"text": "Row )" << row << " tells of";
    for (int word = 0; word < 24; ++word) out << " number" << (row * 31 + word * 17) % 97;
    out << R"(.", "unused": ")" << unused << "\"}\n";
  }
}

/// Anonymous memory of a process: its own, not the kernel's cache of the files that it has mapped.
std::int64_t anonymous_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

class LargeData : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(TESSERA_BINARY).parent_path() / "large_data_test";  // on a disk, as TMPDIR need not be
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", kTinyChat, (folder_ / "model").string()}).exit_code, 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Run {
    std::int64_t peak_bytes = 0;  // anonymous
    test::Finished finished;
  };
  Run train(const std::string& data, const std::vector<std::string>& more = {}) {
    test::Subprocess process(test::Words{TESSERA_BINARY} +
                             test::sft_words(folder_ / "model", folder_ / data, folder_, "out") +
                             test::Words{"--overwrite_output_dir", "--save_model", "false", "--max_steps", "1",
                                         "--max_seq_length", "32", "--dataset_num_proc", "2", "--save_strategy", "no"} +
                             more);
    Run run;
    while (process.running()) {
      run.peak_bytes = std::max(run.peak_bytes, anonymous_bytes(process.pid()));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    run.finished = process.finish();
    EXPECT_EQ(run.finished.exit_code, 0) << run.finished.err;
    return run;
  }

  fs::path folder_;
};

TEST_F(LargeData, PrivateMemoryDoesNotGrowWithTheFile) {
  write_rows((folder_ / "small.jsonl").string(), 8 * kMiB);
  write_rows((folder_ / "large.jsonl").string(), 256 * kMiB);
  const auto small = train("small.jsonl"), large = train("large.jsonl");
  EXPECT_GT(small.peak_bytes, 8 * kMiB);
  EXPECT_LT(large.peak_bytes, small.peak_bytes + 16 * kMiB) << "small: " << small.peak_bytes;
  EXPECT_NE(large.finished.out.find(" 1 file(s) became "), std::string::npos) << large.finished.out;
}

TEST_F(LargeData, StreamingReadsNoFurtherThanTheStepsNeed) {
  write_rows((folder_ / "rows.jsonl").string(), 16 * kMiB);
  std::ofstream((folder_ / "rows.jsonl").string(), std::ios::app) << "this is no JSON\n";
  const auto run =
      train("rows.jsonl", {"--dataset_streaming", "--per_device_train_batch_size", "3", "--max_steps", "2"});
  EXPECT_NE(run.finished.out.find("Num examples = 6"), std::string::npos) << run.finished.out;
}

TEST_F(LargeData, StreamingNeedsAnEnd) {
  const auto r = test::run({TESSERA_BINARY, "sft", "--model_name_or_path", kTinyChat, "--dataset_name", kTinyChat,
                            "--output_dir", (folder_ / "out").string(), "--streaming"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("--max_steps"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace tessera
