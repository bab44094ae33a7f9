#pragma once
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

namespace tessera::test {

/// Same shape, and no element differs by more than `tolerance` times the largest magnitude of `expected`.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const std::string& what) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const auto a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const double worst = (a - e).abs().max().item<double>(), scale = e.abs().max().item<double>();
  EXPECT_LE(worst, tolerance * scale) << what << ": worst difference " << worst << ", largest value " << scale;
}

}  // namespace tessera::test
