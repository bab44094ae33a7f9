#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <new>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

template <class E>
std::pair<int, std::string> outcome(const E& error) {
  std::ostringstream err;
  const int code = run_guarded([&]() -> int { throw error; }, err);
  return {code, err.str()};
}

TEST(ExitCode, EveryKindOfErrorHasItsOwn) {
  EXPECT_EQ(outcome(ConfigError("a")), std::make_pair(2, std::string("tessera error: a\n")));
  EXPECT_EQ(outcome(DataError("a")).first, 3);
  EXPECT_EQ(outcome(CheckpointError("a")).first, 4);
  EXPECT_EQ(outcome(CommError("a", 1, "all_gather", 2)).first, 5);
  EXPECT_EQ(outcome(InternalError("a")).first, 70);
  EXPECT_EQ(outcome(std::bad_alloc()).first, 71);
}

TEST(ExitCode, OfOtherLibrariesErrorsOnlyTheFirstLineIsShown) {
  EXPECT_EQ(outcome(std::runtime_error("what\nException raised from frame #0")),
            std::make_pair(70, std::string("tessera error: what\n")));
}

TEST(ExitCode, WithoutAnExceptionTheBodyDecides) {
  std::ostringstream err;
  EXPECT_EQ(run_guarded([] { return 1; }, err), 1);
  EXPECT_EQ(err.str(), "");
}

}  // namespace
}  // namespace tessera::cli
