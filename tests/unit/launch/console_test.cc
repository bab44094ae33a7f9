// What the launcher shows: to readers who are slow, stand still or have left.
#include "launch/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "launch/process.h"

namespace tessera::launch {
namespace {

const std::string kFarMore(1 << 20, 'x');  // than a pipe holds

TEST(Console, ShowsAllToASlowReaderOfAPipeThatDoesNotBlock) {
  const Pipe pipe = make_pipe();
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  std::string said, seen;
  for (int i = 0; i < 100'000; ++i) said += fmt::format("line {}\n", i);
  Console console(pipe.write.get());
  console.put(said);
  EXPECT_TRUE(console.has_pending());
  while (seen.size() < said.size()) {
    std::array<char, 1000> buffer;
    const ssize_t n = ::read(pipe.read.get(), buffer.data(), buffer.size());
    ASSERT_GT(n, 0);
    seen.append(buffer.data(), static_cast<std::size_t>(n));
    console.flush();
  }
  EXPECT_EQ(seen, said);
  EXPECT_FALSE(console.has_pending());
}

TEST(Console, DoesNotWaitForAReaderWhoStandsStill) {
  const Pipe pipe = make_pipe();
  Console console(pipe.write.get());
  console.put(kFarMore);
  EXPECT_TRUE(console.is_behind());
  EXPECT_FALSE(has_room(pipe.write.get()));
  console.give_up();
  console.put("more");
  EXPECT_FALSE(console.has_pending());
}

TEST(Console, OutlivesItsReader) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  Console console(pipe.write.get());
  console.put(kFarMore);
  pipe.read.reset();
  console.flush();
  EXPECT_FALSE(console.has_pending());
  ::signal(SIGPIPE, before);
}

TEST(Console, WritesIntoAFileBehindWhatOthersHaveWritten) {
  const std::string path = testing::TempDir() + "console_" + std::to_string(::getpid());
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  Console console(file.get());
  ASSERT_EQ(::write(file.get(), "a", 1), 1);
  console.put("b");
  ASSERT_EQ(::write(file.get(), "c", 1), 1);
  std::array<char, 8> found{};
  EXPECT_EQ(::pread(file.get(), found.data(), found.size(), 0), 3);
  EXPECT_STREQ(found.data(), "abc");
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace tessera::launch
