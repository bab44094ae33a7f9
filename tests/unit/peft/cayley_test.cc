#include "peft/methods/cayley.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "support/compare.h"

namespace tessera::peft {
namespace {

TEST(Cayley, IsTheSolutionThatLibtorchDifferentiates) {
  torch::manual_seed(5);
  const auto free = (torch::randn({3, 6, 6}) / 2).set_requires_grad(true);
  const auto weights = torch::randn({3, 6, 6});
  const auto gradient_of = [&](const at::Tensor& y) { return torch::autograd::grad({(y * weights).sum()}, {free})[0]; };
  const auto skew = [&] { return free - free.transpose(1, 2); };
  const auto one = torch::eye(6);
  const auto expected = at::linalg_solve(one + skew(), one - skew()), found = cayley(skew());
  test::expect_close(found.detach(), expected.detach(), 2e-5, "rotations");
  test::expect_close(gradient_of(found), gradient_of(expected), 2e-5, "gradient");
  test::expect_close(at::bmm(found, found.transpose(1, 2)).detach(), one.expand({3, 6, 6}), 2e-5, "orthogonal");
}

}  // namespace
}  // namespace tessera::peft
