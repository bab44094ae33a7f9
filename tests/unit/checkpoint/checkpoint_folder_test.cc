#include "checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public ::testing::Test {
 protected:
  std::string write(std::int64_t step, const std::string& content) {
    const std::string partial = partial_folder(folder_, step);
    fs::create_directories(partial + "/sub");
    write_file_atomically(partial + "/sub/file", content);
    return commit_checkpoint(folder_, step, 1);
  }
  std::vector<std::int64_t> steps() {
    std::vector<std::int64_t> result;
    for (const auto& c : list_checkpoints(folder_)) result.push_back(c.step);
    return result;
  }

  const test::TempFolder temporary_{"checkpoint_folder"};
  const std::string& folder_ = temporary_.path();
};

TEST_F(CheckpointFolder, AreListedByStepNotByName) {
  for (const int step : {100, 20, 3}) write(step, "x");
  fs::create_directories(folder_ + "/checkpoint-x");
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{3, 20, 100}));
}

TEST_F(CheckpointFolder, OneThatIsNotCommittedIsNone) {
  fs::create_directories(partial_folder(folder_, 7));
  EXPECT_TRUE(steps().empty());
  remove_partial_folders(folder_);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CheckpointFolder, ASecondSaveOfAStepReplacesTheFirst) {
  write(5, "old");
  const std::string path = write(5, "new");
  EXPECT_EQ(read_file(path + "/sub/file"), "new");
  EXPECT_EQ(steps(), std::vector<std::int64_t>{5});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(CheckpointFolder, RotationKeepsTheNewestAndTheBest) {
  for (const int step : {1, 2, 3, 4}) write(step, "x");
  rotate_checkpoints(folder_, 2, folder_ + "/checkpoint-1");
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 4}));
  rotate_checkpoints(folder_, 1, "");
  EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
}

}  // namespace
}  // namespace tessera::checkpoint
