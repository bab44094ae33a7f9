#include "base/log.h"

#include <gtest/gtest.h>

#include "base/env.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(Log, SaysWhoWarns) {
  testing::internal::CaptureStderr();
  log_info("done");
  log_warning("with {} braces");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tessera: done\ntessera warning: with {} braces\n");
}

// A process reads it once: each level in one of its own.
TEST(LogDeathTest, LeavesOutWhatTheEnvironmentSays) {
  const auto said = [](const char* level, const char* expected) {
    EXPECT_EXIT(
        {
          ::setenv("TESSERA_LOG_LEVEL", level, 1);
          log_info("done");
          log_warning("look");
          log_error("stop");
          std::exit(0);
        },
        testing::ExitedWithCode(0), expected);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  said("info", "^tessera: done\ntessera warning: look\ntessera error: stop\n$");
  said("warning", "^tessera warning: look\ntessera error: stop\n$");
  said("error", "^tessera error: stop\n$");
  said("silent", "^$");
}

TEST(Environment, OnlyDocumentedVariablesAreRead) {
  EXPECT_THROW(environment("UNDOCUMENTED"), InternalError);
  EXPECT_TRUE(environment("PATH").has_value());
}

}  // namespace
}  // namespace tessera
