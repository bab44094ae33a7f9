#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/file.h"
#include "checkpoint/checkpoint_saver.h"
#include "support/temp_folder.h"
#include "tessera/comm/communicator.h"

namespace tessera::checkpoint {
namespace {

/// What the file system cannot do, in place of those that cannot (NFS, FUSE).
struct Lacks {
  bool exchange = false, folder_flush = false;
  std::string_view kept;  // a file of this name stays
} lacks;

}  // namespace
}  // namespace tessera::checkpoint

extern "C" {

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (flags != 0 && tessera::checkpoint::lacks.exchange) return errno = EINVAL, -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int fsync(int file) {
  struct stat about{};
  if (tessera::checkpoint::lacks.folder_flush && ::fstat(file, &about) == 0 && S_ISDIR(about.st_mode))
    return errno = EINVAL, -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  if (name == tessera::checkpoint::lacks.kept) return errno = EBUSY, -1;
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}
}

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public ::testing::Test {
 protected:
  ~CheckpointFolder() override { lacks = {}; }
  std::string write(std::int64_t step, const std::string& content) {
    const std::string partial = partial_folder(folder_, step);
    fs::create_directories(partial + "/sub");
    write_file_atomically(partial + "/sub/file", content);
    return commit_checkpoint(folder_, step, 1);
  }
  std::ptrdiff_t entries() { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }
  void make_old(const std::string& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
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
  EXPECT_EQ(entries(), 1);
}

TEST_F(CheckpointFolder, ASecondSaveReplacesTheFirstWhereNamesCannotBeExchanged) {
  lacks.exchange = true;
  write(5, "old");
  const std::string path = write(5, "new");
  EXPECT_EQ(read_file(path + "/sub/file"), "new");
  EXPECT_EQ(steps(), std::vector<std::int64_t>{5});
  EXPECT_EQ(entries(), 1);
}

TEST_F(CheckpointFolder, IsWrittenWhereFoldersCannotBeFlushed) {
  lacks.folder_flush = true;
  EXPECT_EQ(read_file(write(5, "new") + "/sub/file"), "new");
}

TEST_F(CheckpointFolder, RotationKeepsTheNewestAndTheBest) {
  for (const int step : {1, 2, 3, 4}) write(step, "x");
  rotate_checkpoints(folder_, 2, {folder_ + "/checkpoint-4", folder_ + "/checkpoint-1"});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 4}));
  rotate_checkpoints(folder_, 1, {folder_ + "/checkpoint-4", ""});
  EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
}

TEST_F(CheckpointFolder, RotationTakesWhatAnEarlierRunLeftFirst) {
  for (const int step : {5, 6}) make_old(write(step, "of another run"));
  for (const int step : {1, 2}) rotate_checkpoints(folder_, 2, {write(step, "x"), ""});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
  const std::string newest = write(3, "by a clock that is behind");
  make_old(newest);
  rotate_checkpoints(folder_, 1, {newest, ""});
  EXPECT_EQ(steps(), std::vector<std::int64_t>{3});
}

TEST_F(CheckpointFolder, WhatCannotBeRemovedIsAWarningAndGoesLater) {
  lacks.kept = "held";
  const auto solo = comm::make_solo();
  CheckpointSaver saver(*solo, folder_, 1, SaveQueue::Mode::kNow);
  ::testing::internal::CaptureStderr();
  for (const int step : {1, 2, 2, 3}) {
    write_file_atomically(saver.begin(step, "") + "/held", "x");
    saver.end();
  }
  fs::create_directories(partial_folder(folder_, 4));
  write_file_atomically(partial_folder(folder_, 4) + "/held", "of a run that was killed");
  write_file_atomically(saver.begin(4, "") + "/file", "x");
  saver.end();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      said.find("tessera warning: cannot remove '" + folder_ + "/.removed-checkpoint-1': Device or resource busy"),
      std::string::npos)
      << said;
  EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoint-4/held"));
  lacks.kept = {};
  remove_partial_folders(folder_);
  EXPECT_EQ(entries(), 2) << "checkpoint-4 and the run's lock";
}

}  // namespace
}  // namespace tessera::checkpoint
