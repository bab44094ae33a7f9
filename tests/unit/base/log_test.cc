#include "base/log.h"

#include <gtest/gtest.h>

#include "base/env.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string logged(int rank, int world, LogLevel level) {
  set_log_rank(rank, world);
  testing::internal::CaptureStderr();
  log(level, "message");
  set_log_rank(0, 1);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, NamesTheRankOnlyWhereThereAreSeveral) {
  EXPECT_EQ(logged(0, 1, LogLevel::kInfo), "tessera: message\n");
  EXPECT_EQ(logged(1, 2, LogLevel::kWarning), "[rank 1] tessera warning: message\n");
}

TEST(Log, InformationComesFromRankZeroAlone) {
  EXPECT_EQ(logged(1, 2, LogLevel::kInfo), "");
  EXPECT_EQ(logged(0, 2, LogLevel::kInfo), "[rank 0] tessera: message\n");
}

TEST(Log, DropsWhatIsBelowItsLevel) {
  set_log_level(LogLevel::kError);
  EXPECT_EQ(logged(0, 1, LogLevel::kWarning), "");
  set_log_level(LogLevel::kInfo);
  EXPECT_THROW(parse_log_level("loud"), ConfigError);
}

TEST(Environment, OnlyDocumentedVariablesAreRead) {
  EXPECT_THROW(environment("UNDOCUMENTED"), InternalError);
  EXPECT_TRUE(environment("PATH").has_value());
}

}  // namespace
}  // namespace tessera
