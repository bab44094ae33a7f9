// Every fused operation against its composite, value and gradients; masks against what they promise.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "nn/ops/attention.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/expert_rows.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/rms_norm.h"
#include "support/compare.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/init.h"
#include "tessera/nn/linear.h"
#include "unit/nn/same_gradients.h"

namespace tessera::nn {
namespace {

at::Tensor normal(at::IntArrayRef sizes) {
  return torch::randn(sizes);
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& w) {
  const auto x32 = x.to(torch::kFloat);
  const auto n = x32 * torch::rsqrt(x32.pow(2).mean(-1, true) + 1e-6);
  return w * n.to(w.scalar_type());
}

TEST(RmsNormOp, EqualsComposite) {
  torch::manual_seed(1);
  expect_same(
      {normal({3, 5, 33}), normal({33})}, [](const Inputs& i) { return rms_norm(i[0], i[1], 1e-6); },
      [](const Inputs& i) { return plain_rms_norm(i[0], i[1]); }, 2e-6);
}

TEST(RmsNormOp, WorksInBfloat16) {
  torch::manual_seed(1);
  expect_same(
      {normal({7, 64}).to(torch::kBFloat16), normal({64}).to(torch::kBFloat16)},
      [](const Inputs& i) { return rms_norm(i[0], i[1], 1e-6); },
      [](const Inputs& i) { return plain_rms_norm(i[0], i[1]); }, 2e-2);
}

/// Rows of x to two experts that scale them, and one that all rows go to.
template <class Take, class Add>
at::Tensor mixture(const Inputs& i, const Take& take, const Add& add) {
  auto rest = i[0];
  auto out = torch::zeros_like(i[0]);
  const std::vector<at::Tensor> tokens = {torch::tensor({0, 2, 3, 6}), torch::tensor({1, 2, 5})};
  for (std::size_t e = 0; e < 2; ++e) {
    const auto [rows, next] = take(rest, tokens[e]);
    rest = next;
    out = add(out, rows * i[1] * static_cast<double>(e + 2), i[2 + e], tokens[e]);
  }
  return add(out, rest * i[1], i[4], at::Tensor());
}

TEST(ExpertRowsOp, EqualsLibtorchsOperators) {
  torch::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    Inputs inputs = {normal({7, 33}), normal({33}), normal({4}), normal({3}), normal({7})};
    for (auto& t : inputs) t = t.to(dtype);
    expect_same(
        inputs, [](const Inputs& i) { return mixture(i, take_rows, add_weighted_rows); },
        [](const Inputs& i) {
          return mixture(
              i,
              [](const at::Tensor& x, const at::Tensor& tokens) {
                return TakenRows{torch::index_select(x, 0, tokens), x};
              },
              [](const at::Tensor& out, const at::Tensor& y, const at::Tensor& weights, const at::Tensor& tokens) {
                const auto products = y * weights.unsqueeze(1);
                return tokens.defined() ? torch::index_add(out, 0, tokens, products) : out + products;
              });
        },
        dtype == torch::kFloat ? 2e-6 : 2e-2);
  }
}

TEST(ExpertRowsOp, AddsWithoutACopy) {
  torch::manual_seed(1);
  const auto out = torch::zeros({7, 33});
  const auto* before = out.const_data_ptr();
  const auto y = normal({2, 33}).set_requires_grad(true);
  EXPECT_EQ(add_weighted_rows(out, y, normal({2}), torch::tensor({1, 4})).const_data_ptr(), before);
}

TEST(ReluDropoutOp, WithoutDropoutEqualsRelu) {
  torch::manual_seed(1);
  expect_same(
      {normal({40, 300})}, [](const Inputs& i) { return relu_dropout(i[0], 0.0); },
      [](const Inputs& i) { return torch::relu(i[0]); }, 0);
}

TEST(DropoutOp, DropsTheAskedShareAndScalesTheRest) {
  tensor::manual_seed(5);
  const auto y = dropout(torch::ones({100000}), 0.1);
  const double dropped = (y == 0).sum().item<double>() / 1e5;
  EXPECT_NEAR(dropped, 0.1, 0.004);  // four standard deviations
  EXPECT_TRUE(torch::allclose(y.masked_select(y != 0), torch::full({}, 1.0f / 0.9f)));
}

TEST(DropoutOp, BackwardUsesTheMaskOfForward) {
  tensor::manual_seed(5);
  const auto x = torch::ones({50, 99}).set_requires_grad(true), r = torch::zeros({50, 99}).set_requires_grad(true);
  const auto y = dropout_add(r, x, 0.3);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(y.detach(), x.grad()));
  EXPECT_TRUE(torch::equal(r.grad(), torch::ones({50, 99})));
  const auto z = torch::randn({50, 99}).set_requires_grad(true);
  const auto h = relu_dropout(z, 0.3);
  h.sum().backward();
  test::expect_close(z.grad() * torch::relu(z.detach()), h.detach(), 1e-6, "relu mask");
}

TEST(DropoutOp, IsDeterministicAndChangesFromCallToCall) {
  const auto x = torch::ones({1000});
  tensor::manual_seed(9, 1);
  const auto a = dropout(x, 0.5), b = dropout(x, 0.5);
  tensor::manual_seed(9, 1);
  EXPECT_TRUE(torch::equal(a, dropout(x, 0.5)));
  EXPECT_FALSE(torch::equal(a, b));
  tensor::manual_seed(9, 2);  // another rank
  EXPECT_FALSE(torch::equal(a, dropout(x, 0.5)));
}

TEST(DropoutOp, MaskDoesNotDependOnTheDtype) {
  tensor::manual_seed(9);
  const auto a = dropout(torch::ones({5000}), 0.5);
  tensor::manual_seed(9);
  const auto b = dropout(torch::ones({5000}).to(torch::kBFloat16), 0.5);
  EXPECT_TRUE(torch::equal(a, b.to(torch::kFloat)));
}

TEST(LoraLinearOp, EqualsCompositeWithEveryGradient) {
  torch::manual_seed(1);
  const Inputs inputs{normal({9, 16}), normal({12, 16}), normal({12}), normal({4, 16}), normal({12, 4})};
  expect_same(
      inputs, [](const Inputs& i) { return lora_linear(i[0], i[1], i[2], {i[3], i[4], 1.7, 0.0}); },
      [](const Inputs& i) {
        return torch::linear(i[0], i[1], i[2]) + torch::linear(torch::linear(i[0], i[3]), i[4]) * 1.7;
      },
      2e-6);
}

TEST(LoraLinearOp, DropoutUsesOneMaskBothWays) {
  torch::manual_seed(1);
  const auto x = torch::rand({6, 16}) + 1, w = torch::zeros({16, 16}), a = torch::eye(16), b = torch::eye(16);
  const auto run = [&](double p) {
    tensor::manual_seed(4);
    auto leaf = x.clone().set_requires_grad(true);
    const auto y = lora_linear(leaf, w, {}, {a, b, 1.0, p});  // = dropout(x)
    y.sum().backward();
    return std::pair{y.detach(), leaf.grad()};
  };
  const auto [y, gx] = run(0.4);
  EXPECT_GT((y == 0).sum().item<int>(), 0);
  test::expect_close(gx * x, y, 1e-6, "mask");
}

constexpr std::int64_t kHeads = 2;

/// q, k, v of [tokens, heads * D], and a bias perhaps.
at::Tensor attention(const Inputs& i, const AttentionOptions& o) {
  return attention(query_heads(i[0], kHeads), key_heads(i[1], kHeads), key_heads(i[2], kHeads), o,
                   {.bias = i.size() > 3 ? i[3] : at::Tensor()});
}

// One sequence at a time, every step written out.
at::Tensor plain_attention(const Inputs& i, const AttentionOptions& o) {
  Inputs rows;
  for (std::int64_t s = 0; s < o.query_rows->count(); ++s) {
    const auto heads = [&](const at::Tensor& x, const SequenceRows& r) {
      return x.narrow(0, r.begin[s], r.length[s]).view({r.length[s], kHeads, -1}).transpose(0, 1);
    };
    const auto q = heads(i[0], *o.query_rows), k = heads(i[1], *o.key_rows), v = heads(i[2], *o.key_rows);
    const auto m = q.size(1), n = k.size(1);
    auto scores = torch::matmul(q, k.transpose(1, 2)) * o.scale;
    if (i.size() > 3) scores = scores + bias_of_pairs(i[3], o.query_rows->longest(), m, n);
    if (o.causal) {
      const auto hidden = torch::ones({m, n}).triu(n - m + 1).to(torch::kBool);
      scores = scores.masked_fill(hidden, std::numeric_limits<float>::lowest());
    }
    if (o.key_visible.defined()) {
      const auto hidden = o.key_visible.narrow(0, o.key_rows->begin[s], n).eq(0);
      scores = scores.masked_fill(hidden, std::numeric_limits<float>::lowest());
    }
    rows.push_back(torch::matmul(torch::softmax(scores, -1), v).transpose(0, 1).reshape({m, -1}));
  }
  return torch::cat(rows);
}

AttentionOptions ragged(bool causal) {
  AttentionOptions o;
  o.causal = causal;
  o.scale = 0.7;
  o.query_rows = std::make_shared<SequenceRows>(SequenceRows{{0, 5, 6}, {5, 1, 7}});
  o.key_rows = causal ? o.query_rows : std::make_shared<SequenceRows>(SequenceRows{{0, 9, 12}, {9, 3, 4}});
  return o;
}

TEST(AttentionOp, CrossAttentionOfRaggedSequencesEqualsComposite) {
  torch::manual_seed(1);
  const auto o = ragged(false);
  expect_same(
      {normal({13, 12}), normal({16, 12}), normal({16, 12})}, [&](const Inputs& i) { return attention(i, o); },
      [&](const Inputs& i) { return plain_attention(i, o); }, 1e-5);
}

TEST(AttentionOp, CausalWithBiasEqualsCompositeAndSumsTheBiasGradient) {
  torch::manual_seed(1);
  const auto o = ragged(true);
  expect_same(
      {normal({13, 12}), normal({13, 12}), normal({13, 12}), normal({2, 13})},
      [&](const Inputs& i) { return attention(i, o); }, [&](const Inputs& i) { return plain_attention(i, o); }, 1e-5);
}

TEST(AttentionOp, InvisibleKeysAreLeftOutAndNoKeyAtAllMeansAllEvenly) {
  torch::manual_seed(1);
  auto o = ragged(false);
  o.key_visible = torch::ones({16}, torch::kByte);
  o.key_visible.index_put_({torch::tensor({1, 4, 9, 10, 11})}, 0);  // all keys of the second sequence
  const Inputs inputs{normal({13, 12}), normal({16, 12}), normal({16, 12})};
  test::expect_close(attention(inputs, o), plain_attention(inputs, o), 1e-5, "value");
}

TEST(AttentionOp, DropoutKeepsTheExpectationAndItsGradientIsConsistent) {
  torch::manual_seed(1);
  auto o = ragged(false);
  const Inputs in{normal({13, 12}).to(torch::kFloat), normal({16, 12}), normal({16, 12})};
  const auto expected = plain_attention(in, o);
  o.dropout = 0.3;
  tensor::manual_seed(1);
  auto mean = torch::zeros_like(expected);
  for (int i = 0; i < 2000; ++i) mean += attention(in, o) / 2000;
  EXPECT_LT((mean - expected).abs().max().item<double>(), 0.15);
  // Directional derivative with the same mask.
  auto v = in[2].clone().set_requires_grad(true), q = in[0].clone().set_requires_grad(true);
  const auto dir_v = normal({16, 12}), dir_q = normal({13, 12}), weights = normal({13, 12});
  const auto value = [&](const at::Tensor& q_at, const at::Tensor& v_at) {
    tensor::manual_seed(8);
    return (attention({q_at, in[1], v_at}, o) * weights).sum();
  };
  value(q, v).backward();
  const double h = 1e-2,
               numeric = (value(in[0] + h * dir_q, in[2] + h * dir_v) - value(in[0] - h * dir_q, in[2] - h * dir_v))
                             .item<double>() /
                         (2 * h);
  const double analytic = ((q.grad() * dir_q).sum() + (v.grad() * dir_v).sum()).item<double>();
  EXPECT_NEAR(analytic, numeric, 2e-2 * std::abs(numeric) + 1e-2);
}

TEST(LinearCrossEntropyOp, EqualsCompositeAndIgnoresNegativeLabels) {
  torch::manual_seed(1);
  const auto labels = torch::tensor({3, -100, 0, 16, 5});
  expect_same(
      {normal({5, 8}), normal({17, 8})},
      [&](const Inputs& i) { return linear_cross_entropy(i[0], i[1], labels, {.scale = 0.5, .normalizer = 4.0}); },
      [&](const Inputs& i) {
        namespace F = torch::nn::functional;
        return F::cross_entropy(torch::linear(i[0], i[1]) * 0.5, labels,
                                F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum)) /
               4.0;
      },
      1e-5);
}

TEST(LinearCrossEntropyOp, AddsABiasOfAnyDtypeAndMakesItsGradient) {
  torch::manual_seed(1);
  namespace F = torch::nn::functional;
  const auto labels = torch::tensor({3, -100, 0, 16, 5});
  const auto composite = [&](const Inputs& i) {
    return F::cross_entropy(torch::linear(i[0], i[1], i[2]) * 0.5, labels,
                            F::CrossEntropyFuncOptions().ignore_index(-100).reduction(torch::kSum)) /
           4.0;
  };
  const auto fused = [&](const Inputs& i) {
    return linear_cross_entropy(i[0], i[1], labels, {.bias = i[2], .scale = 0.5, .normalizer = 4.0});
  };
  expect_same({normal({5, 8}), normal({17, 8}), normal({17})}, fused, composite, 1e-5);
  const auto x = normal({5, 8}), w = normal({17, 8});
  auto bias = normal({17}).requires_grad_(true), half = bias.detach().to(at::kBFloat16).requires_grad_(true);
  composite({x, w, bias}).backward();
  fused({x, w, half}).backward();  // of frozen weights
  EXPECT_TRUE(torch::allclose(half.grad().to(at::kFloat), bias.grad(), 2e-2, 2e-3));
}

TEST(LinearCrossEntropyOp, WithoutRowsTheGradientsAreZero) {
  const auto hidden = torch::empty({0, 8}).requires_grad_(true), weight = normal({17, 8}).requires_grad_(true);
  const auto loss = linear_cross_entropy(hidden, weight, torch::empty({0}, at::kLong), {.normalizer = 4.0});
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros({17, 8})));
  EXPECT_TRUE(torch::equal(hidden.grad(), torch::zeros({0, 8})));
}

TEST(LinearCrossEntropyOp, ManyPiecesGiveTheSameAsOneAndPredict) {
  torch::manual_seed(1);
  const auto hidden = normal({300, 8}), weight = normal({32128, 8});  // 38 MB of logits
  const auto labels = torch::randint(0, 32128, {300});
  at::Tensor predictions;
  const auto loss = linear_cross_entropy(hidden, weight, labels, {.normalizer = 300.0, .predictions = &predictions});
  const auto logits = torch::linear(hidden, weight);
  EXPECT_NEAR(loss.item<double>(), torch::nn::functional::cross_entropy(logits, labels).item<double>(), 1e-4);
  EXPECT_TRUE(torch::equal(predictions, logits.argmax(-1)));
}

TEST(LinearCrossEntropyOp, RefusesALabelThatTheHeadHasNoClassFor) {
  const auto hidden = normal({2, 8}), weight = normal({17, 8});
  try {
    linear_cross_entropy(hidden, weight, torch::tensor({16, 17}), {});
    ADD_FAILURE() << "expected a DataError";
  } catch (const DataError& e) {
    EXPECT_STREQ(e.what(),
                 "label 17 is outside the output head's 17 classes; the tokenizer does not belong to this model");
  }
}

TEST(EmbeddingModule, GradientEqualsComposite) {
  Embedding table(11, 6);
  reset_parameters(table, 3);
  const auto ids = torch::tensor({{1, 4, 4}, {10, 0, 4}});
  table.zero_grad();
  const auto weights = normal({2, 3, 6});
  (table(ids) * weights).sum().backward();
  auto leaf = table.weight.detach().clone().set_requires_grad(true);
  (torch::embedding(leaf, ids) * weights).sum().backward();
  test::expect_close(table.weight.grad(), leaf.grad(), 1e-6, "table gradient");
}

TEST(ResetParameters, DependsOnTheNameAndTheSeedOnly) {
  Linear a(4, 3), b(4, 3), c(4, 3);
  reset_parameters(a, 1);
  reset_parameters(b, 1);
  reset_parameters(c, 2);
  EXPECT_TRUE(torch::equal(a.weight, b.weight));
  EXPECT_FALSE(torch::equal(a.weight, c.weight));
  EXPECT_LE(a.weight.abs().max().item<double>(), 0.5);
}

}  // namespace
}  // namespace tessera::nn
