// What is drawn for a token is the same in any batch (tensor::PassScope).
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <numeric>

#include "nn/ops/attention.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/noise.h"
#include "tensor/rng.h"

namespace tessera::nn {
namespace {

at::Tensor keys(std::vector<std::int64_t> values) {
  return torch::tensor(values, torch::kLong);
}

/// f(x) for rows with these keys, drawn from the same place of the stream each time.
template <class F>
at::Tensor drawn(const at::Tensor& rows, const F& f) {
  const tensor::PassScope draws(rows, 1000);
  return f();
}

TEST(RowMasks, ARowIsMaskedAlikeInAnyBatch) {
  tensor::manual_seed(3);
  const auto x = torch::rand({4, 33}) + 1, w = torch::zeros({33, 33}), eye = torch::eye(33);
  const auto part = x.slice(0, 1, 3);
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> operations = {
      [](const at::Tensor& t) { return dropout(t, 0.4); }, [](const at::Tensor& t) { return relu_dropout(t, 0.4); },
      [](const at::Tensor& t) { return dropout_add(torch::ones_like(t), t, 0.4); },
      [&](const at::Tensor& t) { return lora_linear(t, w, {}, {eye, eye, 1.0, 0.4}); },
      [](const at::Tensor& t) { return uniform_noise(t, torch::ones({t.size(0)})); }};
  for (const auto& f : operations) {
    const auto all = drawn(keys({10, 11, 12, 13}), [&] { return f(x); });
    const auto two = drawn(keys({11, 12}), [&] { return f(part); });
    EXPECT_TRUE(torch::equal(two, all.slice(0, 1, 3)));
    EXPECT_FALSE(torch::equal(drawn(keys({21, 22}), [&] { return f(part); }), two));
  }
}

TEST(RowMasks, GradientsUseTheMaskOfTheForward) {
  const auto x = torch::rand({3, 40}).set_requires_grad(true);
  at::Tensor y;
  {
    const tensor::PassScope draws(keys({7, 5, 9}), 2);
    y = dropout(x, 0.5);
  }
  y.sum().backward();  // outside of the scope
  EXPECT_TRUE(torch::equal(x.grad() * x.detach(), y.detach()));
}

TEST(RowMasks, TheStreamGoesOnAsIfThereHadBeenNoPass) {
  tensor::manual_seed(8);
  const auto x = torch::ones({200});
  const auto plain = dropout(x, 0.5);
  tensor::manual_seed(8);
  (void)drawn(keys({1, 2}), [&] { return dropout(torch::ones({2, 9}), 0.5); });
  EXPECT_TRUE(torch::equal(dropout(x, 0.5), plain));
}

std::shared_ptr<SequenceRows> sequences(std::vector<std::int64_t> lengths) {
  auto rows = std::make_shared<SequenceRows>();
  std::int64_t begin = 0;
  for (auto n : lengths) {
    rows->begin.push_back(begin);
    rows->length.push_back(n);
    begin += n;
  }
  return rows;
}

TEST(RowMasks, AttentionOfASequenceIsTheSameInAnyBatch) {
  torch::manual_seed(2);
  const auto q = torch::randn({9, 8}), k = torch::randn({9, 8}), v = torch::randn({9, 8});
  const auto attend = [&](std::int64_t begin, std::vector<std::int64_t> lengths, bool causal) {
    const auto rows = sequences(lengths);
    const auto part = [&, n = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})](const at::Tensor& t) {
      return t.narrow(0, begin, n);
    };
    return drawn(part(torch::arange(9)), [&] {
      AttentionOptions options;
      options.causal = causal;
      options.dropout = 0.5;
      options.query_rows = options.key_rows = rows;
      return attention(query_heads(part(q), 2), key_heads(part(k), 2), key_heads(part(v), 2), options);
    });
  };
  for (const bool causal : {false, true}) {
    const auto both = attend(0, {4, 5}, causal);
    EXPECT_TRUE(torch::allclose(attend(0, {4}, causal), both.slice(0, 0, 4), 1e-6, 1e-7)) << causal;
    EXPECT_TRUE(torch::allclose(attend(4, {5}, causal), both.slice(0, 4), 1e-6, 1e-7)) << causal;
  }
}

}  // namespace
}  // namespace tessera::nn
