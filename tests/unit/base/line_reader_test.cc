#include "base/line_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(LineReader, GivesLinesAsTheyArrive) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto say = [&](const std::string& text) {
    ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  int waits = 0;
  LineReader lines(ends[0], "a pipe", [&] { ++waits; });
  std::string_view line;
  say("one\r\n\ntw");
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "one");
  EXPECT_EQ(waits, 1);
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "");
  EXPECT_EQ(waits, 1);
  say("o\nthe end");
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "two");
  EXPECT_EQ(lines.number(), 3);
  ::close(ends[1]);
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "the end");
  EXPECT_FALSE(lines.next(line));
  ::close(ends[0]);
}

TEST(LineReader, AnInputThatCannotBeReadIsAnError) {
  LineReader lines(-1, "nothing");
  std::string_view line;
  EXPECT_THROW(lines.next(line), DataError);
}

TEST(LineReader, ALineThatIsTooLongIsRefusedBeforeItsEndIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  constexpr std::size_t kLimit = 100;
  LineReader lines(ends[0], "a pipe", [] {}, kLimit);
  const std::string text = "short\n" + std::string(kLimit, 'x') + "\n" + std::string(kLimit + 1, 'y');  // no end
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  std::string_view line;
  ASSERT_TRUE(lines.next(line));
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line.size(), kLimit);
  try {
    lines.next(line);  // the pipe is open: whoever wants more of it waits
    FAIL();
  } catch (const DataError& e) {
    EXPECT_EQ(e.line, 3);
    EXPECT_EQ(e.file, "a pipe");
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace tessera
