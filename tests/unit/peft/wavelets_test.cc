// WaveFT's wavelets: their filters are orthonormal, and a synthesis is the transform's inverse.
#include "peft/methods/wavelets.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "support/compare.h"

namespace tessera::peft {
namespace {

std::vector<std::string> usable() {
  std::vector<std::string> out;
  for (const auto& [family, last] : {std::pair{"db", 10}, std::pair{"sym", 10}, std::pair{"coif", 4}})
    for (int i = family == std::string("sym") ? 2 : 1; i <= last; ++i) out.push_back(family + std::to_string(i));
  return out;
}

TEST(Wavelets, HaveFiltersWhereTheyAreUsable) {
  for (const auto& name : usable()) {
    EXPECT_TRUE(is_wavelet_name(name)) << name;
    EXPECT_FALSE(wavelet_filter(name).empty()) << name;
  }
  for (const char* name : {"db11", "sym20", "coif5", "coif17", "db38"}) {
    EXPECT_TRUE(is_wavelet_name(name)) << name;
    EXPECT_TRUE(wavelet_filter(name).empty()) << name;
  }
  for (const char* name : {"haar", "db0", "db39", "sym1", "sym21", "coif18", ""}) EXPECT_FALSE(is_wavelet_name(name));
}

TEST(Wavelets, FiltersAreOrthonormal) {
  for (const auto& name : usable()) {
    if (name == "coif4") continue;  // PEFT's numbers are no wavelet's
    const auto filter = wavelet_filter(name);
    double sum = 0;
    for (const auto h : filter) sum += h;
    EXPECT_NEAR(sum, std::sqrt(2.0), 1e-6) << name;
    for (std::size_t shift = 0; shift < filter.size(); shift += 2) {
      double product = 0;
      for (std::size_t i = shift; i < filter.size(); ++i) product += double{filter[i]} * filter[i - shift];
      EXPECT_NEAR(product, shift == 0 ? 1 : 0, 1e-6) << name << " " << shift;
    }
  }
}

// The coefficients reach beyond both ends, so that every row has all that adds to it.
TEST(Wavelets, RowsOfASynthesisAreOrthonormal) {
  for (const auto& name : usable()) {
    if (name == "coif4") continue;
    for (const std::int64_t length : {96, 97}) {
      const Synthesis synthesis(wavelet_filter(name), length);
      const auto taps = static_cast<std::int64_t>(wavelet_filter(name).size());
      EXPECT_EQ(synthesis.coefficients, (length + taps - 1) / 2 * 2) << name;
      EXPECT_EQ(synthesis.offset, (taps - 2) / 2) << name;
      auto dense = torch::zeros({length * synthesis.coefficients});
      dense.index_put_({synthesis.matrix.places->flat}, synthesis.matrix.numbers);
      dense = dense.view({length, synthesis.coefficients});
      test::expect_close(dense.matmul(dense.t()), torch::eye(length), 2e-6, name);
    }
  }
}

}  // namespace
}  // namespace tessera::peft
