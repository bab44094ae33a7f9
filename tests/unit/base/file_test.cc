#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/temporary_file.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "tessera_file_test";
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(File, ReplacesTheOldBytesAndLeavesNoTemporaryFile) {
  write_file_atomically(path("a"), "old and longer");
  write_file_atomically(path("a"), std::string("n\0w", 3));
  EXPECT_EQ(read_file(path("a")), std::string("n\0w", 3));
  EXPECT_EQ(files(), 1u);
}

// Whoever was killed while it wrote left a file that nobody holds.
TEST_F(File, WhatAKilledWriterLeftGoesAtTheNextWrite) {
  const std::string left = path("a.tmp.123.4"), written = open_temporary(path("a")).name, own = path("a.tmp.mine.5");
  EXPECT_TRUE(fs::exists(written));
  for (const auto& name : {left, own}) std::ofstream(name) << "half";
  const TemporaryFile held = open_temporary(path("a"));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_FALSE(fs::exists(written));
  EXPECT_TRUE(fs::exists(own)) << "no name that we give";
  write_file_atomically(path("a"), "whole");
  EXPECT_TRUE(fs::exists(held.name)) << "its writer lives";
  EXPECT_EQ(read_file(path("a")), "whole");
  EXPECT_EQ(files(), 3u);
}

TEST_F(File, ASignalThatEndsTheWriterTakesItsHalfFileAway) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t writer = ::fork();
    if (writer == 0) {
      ::signal(signal, SIG_DFL);
      write_file_atomically(path("a"), "whole");
      const TemporaryFile half = open_temporary(path("b"));
      ::raise(signal);
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    EXPECT_EQ(read_file(path("a")), "whole");
    EXPECT_EQ(files(), 1u) << signal;
  }
}

TEST_F(File, ATextNamesTheFirstByteThatIsNotUtf8) {
  const std::string good = "caf\xC3\xA9 \xEF\xBF\xBD \xF0\x9F\x98\x80";  // U+FFFD itself is a character
  write_file_atomically(path("good"), good);
  EXPECT_EQ(read_text_file(path("good")), good);
  for (const std::string bad : {"caf\xE9", "caf\xC3", "caf\xED\xA0\x80", "caf\xFF{{"}) {
    write_file_atomically(path("bad"), bad);
    try {
      read_text_file(path("bad"));
      ADD_FAILURE() << bad;
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find(path("bad")), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("at byte 3"), std::string::npos) << e.what();
    }
  }
}

TEST_F(File, AFailedWriteNamesThePathAndLeavesNothing) {
  fs::create_directory(path("taken"));
  fs::create_directory(path("taken") + "/inside");
  EXPECT_THROW(write_file_atomically(path("taken"), "x"), CheckpointError);
  EXPECT_EQ(files(), 1u);
  try {
    write_file_atomically(path("missing/a"), "x");
    FAIL();
  } catch (const CheckpointError& e) {
    EXPECT_NE(std::string(e.what()).find(path("missing/a")), std::string::npos);
  }
}

TEST_F(File, ReadingNamesWhatIsWrong) {
  EXPECT_THROW(read_file(path("none")), DataError);
  EXPECT_THROW(read_file(folder_.string()), DataError);
  write_file_atomically(path("big"), "12345");
  EXPECT_THROW(read_file(path("big"), 4), DataError);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(path("pipe")), DataError);  // and does not wait for a writer
}

TEST_F(File, EnsuresAWritableFolderWithSpaceAndLeavesNoProbe) {
  ensure_writable_folder(path("x/y"), 1);
  EXPECT_TRUE(fs::is_empty(path("x/y")));
  EXPECT_THROW(ensure_writable_folder(path("x"), std::int64_t{1} << 60), CheckpointError);
  write_file_atomically(path("file"), "");
  EXPECT_THROW(ensure_writable_folder(path("file")), CheckpointError);
  EXPECT_THROW(ensure_writable_folder("/proc/tessera"), CheckpointError);
}

TEST_F(File, RequiresAWritableFolderWithoutMakingIt) {
  require_writable(path("x/y"));
  EXPECT_TRUE(fs::is_empty(folder_));
  write_file_atomically(path("file"), "");
  for (const std::string& folder : {path("file"), path("file/x/y"), std::string("/proc/tessera/x")}) {
    try {
      require_writable(folder);
      ADD_FAILURE() << folder;
    } catch (const CheckpointError& e) {
      EXPECT_NE(std::string(e.what()).find("cannot write '" + folder + "'"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tessera
