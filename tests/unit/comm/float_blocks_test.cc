// Sums of blocks do not depend on where blocks begin and end, which is where vectors do.
#include "comm/reduce/float_blocks.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace tessera::comm {
namespace {

constexpr std::size_t kNumel = 70'000;  // long enough to go past the caches

template <class T>
struct Format;
template <>
struct Format<float> {
  static constexpr FloatFormat kValue = FloatFormat::kFloat32;
};
template <>
struct Format<c10::BFloat16> {
  static constexpr FloatFormat kValue = FloatFormat::kBFloat16;
};
template <>
struct Format<c10::Half> {
  static constexpr FloatFormat kValue = FloatFormat::kFloat16;
};

template <class T>
std::vector<T> numbers(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> all;
  while (all.size() < kNumel) all.push_back(static_cast<T>(static_cast<float>(random()) * 0x1p-30F - 2.0F));
  return all;
}

template <class Out, class In>
void sums_are_those_of_pieces(bool accumulate) {
  const std::vector<In> a = numbers<In>(1), b = numbers<In>(2), c = numbers<In>(3);
  const Finish finish{1.0F / 3, accumulate};
  const auto sum = [&](std::vector<Out>& out, std::size_t begin, std::size_t n) {
    const void* const sources[] = {&a[begin], &b[begin], &c[begin]};
    sum_block(&out[begin], Format<Out>::kValue, sources, Format<In>::kValue, n, finish);
  };
  std::vector<Out> whole = numbers<Out>(4), pieces = whole;
  sum(whole, 1, kNumel - 1);  // from where no vector is aligned
  for (std::size_t i = 1; i < kNumel; ++i) sum(pieces, i, 1);
  std::size_t others = 0;
  for (std::size_t i = 0; i < kNumel; ++i) others += static_cast<float>(whole[i]) != static_cast<float>(pieces[i]);
  EXPECT_EQ(others, 0u) << "of format " << static_cast<int>(Format<In>::kValue) << " into "
                        << static_cast<int>(Format<Out>::kValue);
}

template <class Out>
void sums_into() {
  for (const bool accumulate : {false, true}) sums_are_those_of_pieces<Out, float>(accumulate);
  for (const bool accumulate : {false, true}) sums_are_those_of_pieces<Out, c10::BFloat16>(accumulate);
  for (const bool accumulate : {false, true}) sums_are_those_of_pieces<Out, c10::Half>(accumulate);
}

TEST(FloatBlocks, HaveTheBitsOfTheirPieces) {
  sums_into<float>();
  sums_into<c10::BFloat16>();
  sums_into<c10::Half>();
}

}  // namespace
}  // namespace tessera::comm
