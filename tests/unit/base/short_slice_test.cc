#include "base/short_slice.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera {
namespace {

TEST(ShortSlice, IsTheCallingThreads) {
  const auto before = slice_of_this_thread();
  if (before == 0) GTEST_SKIP() << "this kernel has no slices of threads";
  std::uint64_t taken = 0;
  std::thread([&] {
    take_short_slices();
    taken = slice_of_this_thread();
  }).join();
  EXPECT_EQ(taken, 100'000u);
  EXPECT_EQ(slice_of_this_thread(), before);
}

}  // namespace
}  // namespace tessera
