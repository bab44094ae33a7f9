#include "base/quantity_text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(BytesText, RoundsToTwoDigitsInUnitsOf1024) {
  EXPECT_EQ(bytes_text(512), "512 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(62.75 * 1024 * 1024), "62.75 MiB");
  EXPECT_EQ(bytes_text(512.0 * 1024 * 1024), "512.0 MiB");
  EXPECT_EQ(mib_text(1536), "1.5 GiB");
}

TEST(DurationText, NamesTheUnitsThatARangeNeeds) {
  EXPECT_EQ(duration_text(5.2e-6), "5.2 us");
  EXPECT_EQ(duration_text(0.0125), "12.5 ms");
  EXPECT_EQ(duration_text(2.5), "2.5 s");
  EXPECT_EQ(duration_text(59.7), "59.7 s");
  EXPECT_EQ(duration_text(250), "4 min 10 s");
  EXPECT_EQ(duration_text(3599.6), "1 h 0 min");
  EXPECT_EQ(duration_text(7500), "2 h 5 min");
}

}  // namespace
}  // namespace tessera
