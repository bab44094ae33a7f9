// LayerNorm and activations with autograd, against libtorch's operators in double.
#include <gtest/gtest.h>
#include <cmath>

#include <functional>

#include "nn/layers/activation.h"
#include "nn/ops/layer_norm.h"
#include "nn/ops/onednn_matmul.h"
#include "unit/nn/same_gradients.h"

namespace tessera::nn {
namespace {

using Function = std::function<at::Tensor(const Inputs&)>;

/// `ours` in `dtype` against `theirs` in double, for the same numbers.
void expect_exact(const Inputs& inputs, at::ScalarType dtype, const Function& ours, const Function& theirs) {
  Inputs given;
  for (const auto& t : inputs) given.push_back(t.to(dtype).to(at::kDouble));
  const double tolerance = dtype == at::kFloat ? 3e-6 : dtype == at::kHalf ? 2e-3 : 1e-2;
  expect_same(
      given,
      [&](const Inputs& i) {
        Inputs narrow;
        for (const auto& t : i) narrow.push_back(t.to(dtype));
        return ours(narrow).to(at::kDouble);
      },
      theirs, tolerance);
}

class RowOps : public testing::TestWithParam<at::ScalarType> {};

TEST_P(RowOps, LayerNormHasTheValueAndGradientsOfLibtorchsInDouble) {
  torch::manual_seed(1);
  for (const auto& sizes : {std::vector<std::int64_t>{300, 200}, {2, 3, 33}}) {
    const auto n = sizes.back();
    const Inputs inputs{torch::randn(sizes) + 2, torch::randn({n}), torch::randn({n})};
    expect_exact(
        inputs, GetParam(), [](const Inputs& i) { return layer_norm(i[0], i[1], i[2], 1e-5); },
        [n](const Inputs& i) { return torch::layer_norm(i[0], {n}, i[1], i[2], 1e-5); });
    expect_exact(
        {inputs[0]}, GetParam(), [](const Inputs& i) { return layer_norm(i[0], {}, {}, 1e-5); },
        [n](const Inputs& i) { return torch::layer_norm(i[0], {n}, {}, {}, 1e-5); });
    expect_exact(
        {inputs[0], inputs[1]}, GetParam(), [](const Inputs& i) { return layer_norm(i[0], i[1], {}, 1e-5); },
        [n](const Inputs& i) { return torch::layer_norm(i[0], {n}, i[1], {}, 1e-5); });
  }
}

TEST_P(RowOps, ActivationsHaveTheValueAndGradientOfLibtorchsInDouble) {
  torch::manual_seed(1);
  const std::vector<std::pair<Activation, Function>> kinds{
      {Activation::kSilu, [](const Inputs& i) { return torch::silu(i[0]); }},
      {Activation::kGelu, [](const Inputs& i) { return torch::gelu(i[0]); }},
      {Activation::kGeluTanh, [](const Inputs& i) { return torch::gelu(i[0], "tanh"); }},
      {Activation::kQuickGelu, [](const Inputs& i) { return i[0] * torch::sigmoid(1.702 * i[0]); }},
      {Activation::kReluSquared, [](const Inputs& i) { return torch::relu(i[0]).square(); }},
      {Activation::kRelu, [](const Inputs& i) { return torch::relu(i[0]); }},
      {Activation::kTanh, [](const Inputs& i) { return torch::tanh(i[0]); }},
      {Activation::kSigmoid, [](const Inputs& i) { return torch::sigmoid(i[0]); }},
      {Activation::kIdentity, [](const Inputs& i) { return i[0]; }},
      {Activation::kClippedGelu, [](const Inputs& i) { return torch::gelu(i[0]).clamp_max(10); }},
      {Activation::kRelu6, [](const Inputs& i) { return torch::hardtanh(i[0], 0, 6); }},
      {Activation::kLeakyRelu, [](const Inputs& i) { return torch::relu(i[0]) - 0.01 * torch::relu(-i[0]); }},
      {Activation::kMish, [](const Inputs& i) { return i[0] * torch::tanh(torch::softplus(i[0])); }},
      {Activation::kLaplace,
       [](const Inputs& i) { return 0.5 * (1 + torch::erf((i[0] - 0.707107) / (0.282095 * std::sqrt(2.0)))); }}};
  for (const auto& [activation, theirs] : kinds) {
    SCOPED_TRACE(static_cast<int>(activation));
    const auto ours = [kind = activation](const Inputs& i) { return activate(i[0], kind); };
    expect_exact({torch::randn({40, 130}) * 5}, GetParam(), ours, theirs);
    expect_exact({torch::randn({2, 3, 17}) * 3}, GetParam(), ours, theirs);
    expect_exact(
        {torch::randn({4, 31}), torch::randn({4, 31})}, GetParam(),
        [kind = activation](const Inputs& i) { return gated(i[0], i[1], kind); },
        [&theirs](const Inputs& i) { return theirs(i) * i[1]; });
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RowOps, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(RowOps, TakeTransposedAndEmptyTensors) {
  const auto x = torch::randn({5, 7}).t();
  EXPECT_TRUE(torch::equal(activate(x, Activation::kGelu), activate(x.contiguous(), Activation::kGelu)));
  EXPECT_EQ(activate(torch::empty({0, 7}), Activation::kGelu).sizes(), torch::IntArrayRef({0, 7}));
  EXPECT_EQ(layer_norm(torch::empty({0, 7}), torch::ones({7}), {}, 1e-5).sizes(), torch::IntArrayRef({0, 7}));
}

TEST(RowOps, ParametersWithoutGradientGetNone) {
  const auto x = torch::randn({5, 7}).requires_grad_(), w = torch::ones({7}), b = torch::zeros({7}).requires_grad_();
  layer_norm(x, {}, b, 1e-5).sum().backward();
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({7}, 5.0f)));
  b.mutable_grad().reset();
  layer_norm(x, w, b, 1e-5).sum().backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({7}, 5.0f)));
}

#if defined(__x86_64__)
TEST(OnednnMatmul, IsExportedByThisLibtorch) {
  EXPECT_TRUE(libtorch_has_onednn_matmul())
      << "float32 products fall back to MKL: find the new name of at::native::mkldnn_matmul";
}
#endif

}  // namespace
}  // namespace tessera::nn
