// Label smoothing and dynamic fine-tuning, against transformers and TRL (tests/data/token_loss/make.py), in the fused
// operation and in libtorch's.
#include "nn/ops/token_loss.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nn/ops/linear_cross_entropy.h"
#include "support/compare.h"

namespace tessera::nn {
namespace {

class TokenLosses : public testing::TestWithParam<const char*> {
 protected:
  nlohmann::json expect = nlohmann::json::parse(std::ifstream(TESSERA_TEST_DATA "/token_loss/expect.json"));
  TokenLoss loss = GetParam() == std::string("dft") ? TokenLoss{.kind = TokenLoss::Kind::kDft}
                                                    : TokenLoss{.label_smoothing = expect["epsilon"].get<double>()};
  at::Tensor labels = torch::tensor(expect["labels"].get<std::vector<std::int64_t>>());
  at::Tensor matrix(const nlohmann::json& values) {
    return torch::tensor(values.get<std::vector<float>>()).view({-1, expect["size"].get<std::int64_t>()});
  }

  template <class Loss>
  void expect_same(const Loss& sum_of) {
    const auto hidden = matrix(expect["hidden"]).requires_grad_(), weight = matrix(expect["weight"]).requires_grad_();
    const auto value = sum_of(hidden, weight) / labels.ne(-100).sum();
    value.backward();
    const auto& expected = expect[GetParam()];
    EXPECT_NEAR(value.template item<double>(), expected["loss"].get<double>(), 1e-6);
    test::expect_close(hidden.grad(), matrix(expected["hidden"]), 1e-5, "hidden's gradient");
    test::expect_close(weight.grad(), matrix(expected["weight"]), 1e-5, "weight's gradient");
  }
};

TEST_P(TokenLosses, OfTheFusedOperationAreUpstreams) {
  expect_same([&](const at::Tensor& hidden, const at::Tensor& weight) {
    return linear_cross_entropy(hidden, weight, labels, {.token_loss = loss});
  });
}

TEST_P(TokenLosses, OfLogitsAreUpstreams) {
  expect_same([&](const at::Tensor& hidden, const at::Tensor& weight) {
    return sum_token_losses(torch::linear(hidden, weight), labels, loss);
  });
}

TEST_P(TokenLosses, WithASoftcapAreThoseOfTheCappedLogits) {
  const auto run = [&](bool fused) {
    const auto hidden = matrix(expect["hidden"]).requires_grad_(), weight = matrix(expect["weight"]).requires_grad_();
    const auto value =
        fused ? linear_cross_entropy(hidden, weight, labels, {.scale = 0.7, .softcap = 2.5, .token_loss = loss})
              : sum_token_losses(torch::tanh(torch::linear(hidden, weight) * 0.7 / 2.5) * 2.5, labels, loss);
    value.backward();
    return std::vector<at::Tensor>{value.detach(), hidden.grad(), weight.grad()};
  };
  const auto fused = run(true), composite = run(false);
  for (std::size_t i = 0; i < fused.size(); ++i) test::expect_close(fused[i], composite[i], 1e-5, std::to_string(i));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenLosses, testing::Values("label_smoothing", "dft"));

}  // namespace
}  // namespace tessera::nn
