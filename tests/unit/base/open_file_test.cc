// What a path may lead to besides a file, and a name that others take away.
#include "base/open_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/held_name.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

class OpenFileTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string pipe() const {
    ::mkfifo(path("pipe").c_str(), 0600);
    return path("pipe");
  }
  const test::TempFolder folder_{"open_file"};
};

TEST_F(OpenFileTest, NamesWhatIsThereInsteadOfAFile) {
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(name.sun_path, path("socket").c_str(), sizeof name.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  fs::create_symlink(path("nowhere"), path("link"));
  write_file_atomically(path("weights"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {path("weights"), "is a pointer of Git LFS, not the file itself; 'git lfs pull'"},
      {path("none"), "No such file"},
      {folder_.path(), "found a folder"},
      {pipe(), "found a named pipe"},
      {path("socket"), "found a socket"},
      {"/dev/zero", "found a device"},
      {path("link"), "a link to '" + path("nowhere")}};
  for (const auto& [file, says] : cases) {
    const auto message = message_of([&] { OpenFile{file}; });
    EXPECT_NE(message.find("'" + file + "'"), std::string::npos) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
  ::close(socket);
}

TEST_F(OpenFileTest, ThePipeIsTakenWhereOneProcessReadsOnce) {
  const std::string file = pipe();
  const int keeps_it_open = ::open(file.c_str(), O_RDWR);
  EXPECT_GE(OpenFile(file, OpenFile::Takes::kPipes).descriptor(), 0);
  EXPECT_NE(message_of([&] { OpenFile(folder_.path(), OpenFile::Takes::kPipes); }).find("found a folder"),
            std::string::npos);
  ::close(keeps_it_open);
}

// Each of them waited for ever.
TEST_F(OpenFileTest, NothingThatReadsWaitsForAPipe) {
  const std::string file = pipe();
  for (const auto& read : std::vector<std::function<void()>>{[&] { crc32c_of_file(file); }, [&] { read_file(file); }}) {
    EXPECT_NE(message_of(read).find("found a named pipe"), std::string::npos) << message_of(read);
  }
}

TEST_F(OpenFileTest, AgainIsTheSameFileWhateverHasItsName) {
  write_file_atomically(path("a"), "first");
  const OpenFile file(path("a"));
  write_file_atomically(path("a"), "second");
  const int again = file.open_again(0);
  char bytes[8] = {};
  EXPECT_EQ(::read(again, bytes, sizeof bytes), 5);
  EXPECT_STREQ(bytes, "first");
  ::close(again);
}

TEST_F(OpenFileTest, AnOptionalFileIsThereOrNotButNoLinkToNothing) {
  write_file_atomically(path("a"), "");
  EXPECT_TRUE(is_there(path("a")));
  EXPECT_TRUE(is_there(folder_.path()));
  EXPECT_FALSE(is_there(path("b")));
  EXPECT_FALSE(is_there(path("a/b")));
  fs::create_symlink(path("nowhere"), path("link"));
  EXPECT_NE(message_of([&] { is_there(path("link")); }).find("a link to"), std::string::npos);
}

TEST_F(OpenFileTest, AHeldNameSaysWhatHasBecomeOfIt) {
  std::ofstream out(path("a"));
  const HeldName name(path("a"));
  EXPECT_EQ(name.loss(), "");
  out << "more" << std::flush;
  EXPECT_EQ(name.loss(), "");
  fs::rename(path("a"), path("b"));
  EXPECT_EQ(name.loss(), "was removed");
  write_file_atomically(path("a"), "");
  EXPECT_EQ(name.loss(), "was replaced by another file");
  EXPECT_THROW(name.check(), CheckpointError);
  fs::rename(path("b"), path("a"));
  EXPECT_NO_THROW(name.check());
}

}  // namespace
}  // namespace tessera
