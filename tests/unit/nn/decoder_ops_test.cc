// The operations of decoders against composites: value and every gradient.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <numeric>

#include "nn/kernels/bf16_dot.h"
#include "nn/layers/activation.h"
#include "nn/ops/causal_attention.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/rms_norm.h"
#include "nn/ops/rotary.h"
#include "support/compare.h"
#include "tensor/rng.h"
#include "unit/nn/same_gradients.h"

namespace tessera::nn {
namespace {

struct AttentionCase {
  std::string name;
  std::vector<std::int64_t> lengths;
  std::int64_t kv = 2, groups = 2, size = 8, window = 0;
  double softcap = 0;
  bool biases = false, hidden_keys = false, blind_sees_past = false;
  double dropout = 0;
  at::ScalarType dtype = at::kFloat;
  double tolerance = 2e-5;
};

void PrintTo(const AttentionCase& c, std::ostream* out) {
  *out << c.name;
}

// Eager attention of one sequence, as upstream writes it.
at::Tensor eager(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionCase& c,
                 const CausalAttentionOptions& o, std::int64_t begin) {
  const std::int64_t n = q.size(0);
  const auto heads = [&](const at::Tensor& t) { return t.repeat_interleave(c.groups, 1).transpose(0, 1); };
  auto s = torch::matmul(q.flatten(1, 2).transpose(0, 1), heads(k).transpose(1, 2)) * o.scale;
  if (c.softcap > 0) s = torch::tanh(s / c.softcap) * c.softcap;
  if (c.biases) s = s + (o.slopes.view({-1, 1, 1}) * o.key_position.narrow(0, begin, n).view({1, 1, -1}));
  auto seen = torch::ones({n, n}, torch::kBool).tril();
  if (c.window > 0) seen = seen.logical_and(torch::ones({n, n}, torch::kBool).triu(1 - c.window));
  const auto past = seen.clone();
  if (c.hidden_keys) seen = seen.logical_and(o.key_visible.narrow(0, begin, n).ne(0).unsqueeze(0));
  const auto blind = seen.any(1).logical_not().unsqueeze(1);
  s = torch::where(seen, s, torch::full({}, -1e30, s.options()));
  const auto even = torch::where(blind, torch::zeros({}, s.options()), torch::ones({}, s.options()));
  s = s * even;
  if (c.blind_sees_past)
    s = torch::where(blind.logical_and(past.logical_not()), torch::full({}, -1e30, s.options()), s);
  return torch::matmul(torch::softmax(s, -1), heads(v)).transpose(0, 1).reshape({n, -1});
}

std::int64_t tokens_of(const AttentionCase& c) {
  return std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
}

CausalAttentionOptions options_of(const AttentionCase& c) {
  CausalAttentionOptions o;
  o.scale = 0.3;
  o.window = c.window;
  o.softcap = c.softcap;
  o.blind_query_sees_past = c.blind_sees_past;
  o.dropout = c.dropout;
  auto rows = std::make_shared<SequenceRows>();
  std::int64_t tokens = 0;
  for (auto length : c.lengths) {
    rows->begin.push_back(tokens);
    rows->length.push_back(length);
    tokens += length;
  }
  o.query_rows = o.key_rows = rows;
  if (c.biases) {
    o.slopes = torch::tensor({0.5f, 0.25f, 0.125f, 0.1f}).narrow(0, 0, c.kv * c.groups);
    o.key_position = torch::arange(tokens, torch::kFloat) * 0.1;
  }
  if (c.hidden_keys) {
    o.key_visible = torch::ones({tokens}, torch::kByte);
    o.key_visible.narrow(0, 0, 2).zero_();
    o.key_visible[c.lengths[0] - 1] = 0;
  }
  return o;
}

class CausalAttentionOp : public testing::TestWithParam<AttentionCase> {};

TEST_P(CausalAttentionOp, EqualsEagerAttention) {
  const auto& c = GetParam();
  torch::manual_seed(1);
  const auto o = options_of(c);
  const std::int64_t tokens = tokens_of(c);
  const auto& rows = o.key_rows;
  const auto fused = [&](const Inputs& i) { return causal_attention(i[0], i[1], i[2], o); };
  const auto composite = [&](const Inputs& i) {
    std::vector<at::Tensor> out;
    for (std::size_t s = 0; s < c.lengths.size(); ++s) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, rows->begin[s], rows->length[s]); };
      out.push_back(eager(part(i[0]), part(i[1]), part(i[2]), c, o, rows->begin[s]));
    }
    return torch::cat(out);
  };
  const auto make = [&](at::IntArrayRef sizes) { return torch::randn(sizes).to(c.dtype); };
  // A blind query's gradient goes nowhere in the composite, so it is compared without gradients.
  const Inputs inputs = {make({tokens, c.kv, c.groups, c.size}), make({tokens, c.kv, c.size}),
                         make({tokens, c.kv, c.size})};
  if (c.hidden_keys) {
    test::expect_close(fused(inputs), composite(inputs), c.tolerance, "value");
  } else {
    expect_same(inputs, fused, composite, c.tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CausalAttentionOp,
    testing::Values(
        AttentionCase{.name = "packed", .lengths = {5, 1, 9}},
        AttentionCase{.name = "one key head", .lengths = {7}, .kv = 1, .groups = 4},
        AttentionCase{.name = "window", .lengths = {12, 3}, .window = 4},
        AttentionCase{.name = "softcap", .lengths = {6, 4}, .softcap = 2.0},
        AttentionCase{.name = "linear biases", .lengths = {6, 4}, .biases = true},
        AttentionCase{.name = "hidden keys", .lengths = {6, 4}, .hidden_keys = true},
        AttentionCase{.name = "blind to the future", .lengths = {6, 4}, .hidden_keys = true, .blind_sees_past = true},
        AttentionCase{.name = "several blocks", .lengths = {700}, .kv = 4, .groups = 2, .size = 4},
        AttentionCase{
            .name = "several blocks with a window", .lengths = {700}, .kv = 4, .groups = 2, .size = 4, .window = 90},
        AttentionCase{.name = "bfloat16", .lengths = {33}, .dtype = at::kBFloat16, .tolerance = 4e-2}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

// The reference is the same operation in float32, which takes another way.
class CausalAttentionInPairs : public testing::TestWithParam<AttentionCase> {};

TEST_P(CausalAttentionInPairs, EqualsFloat32) {
  if (!kernels::has_bf16_dot()) GTEST_SKIP() << "no instructions for pairs of bfloat16";
  const auto& c = GetParam();
  torch::manual_seed(1);
  const auto o = options_of(c);
  const std::int64_t tokens = tokens_of(c);
  const auto make = [&](at::IntArrayRef sizes) { return torch::randn(sizes).to(at::kBFloat16); };
  const auto attend = [&](const Inputs& i, at::ScalarType dtype) {
    tensor::manual_seed(7);
    return causal_attention(i[0].to(dtype), i[1].to(dtype), i[2].to(dtype), o).to(at::kBFloat16);
  };
  const Inputs inputs = {make({tokens, c.kv, c.groups, c.size}), make({tokens, c.kv, c.size}),
                         make({tokens, c.kv, 2 * c.size})};
  // What is freed here is likely to be scratch memory below.
  Inputs none;
  for (const auto& t : inputs) none.push_back(at::full_like(t, NAN).set_requires_grad(true));
  attend(none, at::kBFloat16).sum().backward();
  expect_same(
      inputs, [&](const Inputs& i) { return attend(i, at::kBFloat16); },
      [&](const Inputs& i) { return attend(i, at::kFloat); }, 2e-2);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CausalAttentionInPairs,
    testing::Values(
        AttentionCase{.name = "packed", .lengths = {5, 1, 16, 33}, .size = 16},
        AttentionCase{.name = "heads of their own", .lengths = {67, 2}, .kv = 3, .groups = 1, .size = 64},
        AttentionCase{.name = "several blocks", .lengths = {333}, .kv = 1, .groups = 2, .size = 32},
        AttentionCase{.name = "long rows", .lengths = {2100}, .kv = 1, .groups = 1, .size = 16},
        AttentionCase{.name = "window", .lengths = {333, 12}, .kv = 1, .groups = 2, .size = 16, .window = 70},
        AttentionCase{.name = "narrow window", .lengths = {150}, .kv = 1, .groups = 2, .size = 48, .window = 3},
        AttentionCase{.name = "softcap", .lengths = {40, 7}, .size = 16, .softcap = 2.0},
        AttentionCase{.name = "linear biases", .lengths = {40, 7}, .size = 16, .biases = true},
        AttentionCase{.name = "hidden keys", .lengths = {75, 7}, .size = 16, .hidden_keys = true},
        AttentionCase{.name = "blind to the future",
                      .lengths = {75, 7},
                      .size = 16,
                      .hidden_keys = true,
                      .blind_sees_past = true},
        AttentionCase{
            .name = "hidden keys in a window", .lengths = {75, 7}, .size = 16, .window = 9, .hidden_keys = true},
        AttentionCase{.name = "dropout", .lengths = {75, 7}, .size = 16, .dropout = 0.3},
        AttentionCase{.name = "dropout in a window", .lengths = {99}, .size = 16, .window = 20, .dropout = 0.3}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST(CausalAttentionOp, ReadsHeadsOfAFusedProjectionInPlace) {
  torch::manual_seed(1);
  CausalAttentionOptions o;
  o.query_rows = o.key_rows = std::make_shared<SequenceRows>(SequenceRows::uniform(2, 4, 4));
  expect_same(
      {torch::randn({8, 2 * 4 * 6})},
      [&](const Inputs& i) {
        const auto parts = i[0].view({8, 2, 4, 6}).split_with_sizes({2, 1, 1}, 2);
        return causal_attention(parts[0], parts[1].squeeze(2), parts[2].squeeze(2), o);
      },
      [&](const Inputs& i) {
        const auto x = i[0].view({8, 2, 4, 6});
        return causal_attention(x.narrow(2, 0, 2).contiguous(), x.select(2, 2).contiguous(),
                                x.select(2, 3).contiguous(), o);
      },
      1e-6);
}

TEST(RotaryOp, EqualsRotateHalf) {
  torch::manual_seed(1);
  const auto angles = torch::randn({10, 3});
  const auto positions = torch::tensor({4, 0, 9, 2, 2}, torch::kLong);
  const RotaryTable table{angles.cos(), angles.sin(), positions};
  const auto plain = [&](const at::Tensor& x) {
    const auto at = angles.index_select(0, positions).unsqueeze(1);
    const auto cos = torch::cat({at.cos(), at.cos()}, -1), sin = torch::cat({at.sin(), at.sin()}, -1);
    const auto turned = x.narrow(-1, 0, 6), rest = x.narrow(-1, 6, 2);
    const auto half = torch::cat({-turned.narrow(-1, 3, 3), turned.narrow(-1, 0, 3)}, -1);
    return torch::cat({turned * cos + half * sin, rest}, -1);
  };
  expect_same(
      {torch::randn({5, 4, 8}), torch::randn({5, 2, 8})},
      [&](const Inputs& i) {
        const auto [q, k] = rotary(i[0].view({5, 2, 2, 8}), i[1], table);
        return torch::cat({q.view({5, 4, 8}), k}, 1);
      },
      [&](const Inputs& i) { return torch::cat({plain(i[0]), plain(i[1])}, 1); }, 1e-6);
}

TEST(RotaryOp, TurnsNeighboursAsGptj) {
  torch::manual_seed(1);
  const auto angles = torch::randn({5, 2});
  const RotaryTable table{angles.cos(), angles.sin(), torch::arange(5), RotaryPairs::kNeighbours};
  expect_same(
      {torch::randn({5, 3, 4}), torch::randn({5, 1, 4})},
      [&](const Inputs& i) {
        const auto [q, k] = rotary(i[0], i[1], table);
        return torch::cat({q, k}, 1);
      },
      [&](const Inputs& i) {
        const auto x = torch::cat({i[0], i[1]}, 1).view({5, 4, 2, 2});
        const auto a = x.select(3, 0), b = x.select(3, 1), c = angles.cos().unsqueeze(1), s = angles.sin().unsqueeze(1);
        return torch::stack({a * c - b * s, b * c + a * s}, -1).view({5, 4, 4});
      },
      1e-6);
}

class GatedOp : public testing::TestWithParam<Activation> {};

TEST_P(GatedOp, EqualsActivationTimesUp) {
  torch::manual_seed(1);
  expect_same(
      {torch::randn({9, 2 * 37}) * 4},
      [](const Inputs& i) { return gated(i[0].narrow(1, 0, 37), i[0].narrow(1, 37, 37), GetParam()); },
      [](const Inputs& i) { return activate(i[0].narrow(1, 0, 37), GetParam()) * i[0].narrow(1, 37, 37); }, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Activations, GatedOp,
                         testing::Values(Activation::kSilu, Activation::kGeluTanh, Activation::kGelu,
                                         Activation::kQuickGelu));

TEST(GatedOp, WorksInBfloat16) {
  torch::manual_seed(1);
  expect_same(
      {torch::randn({9, 64}).to(torch::kBFloat16), torch::randn({9, 64}).to(torch::kBFloat16)},
      [](const Inputs& i) { return gated(i[0], i[1], Activation::kSilu); },
      [](const Inputs& i) { return torch::silu(i[0]) * i[1]; }, 2e-2);
}

TEST(RmsNormOp, AddsTheOffsetToTheWeight) {
  torch::manual_seed(1);
  expect_same(
      {torch::randn({7, 33}), torch::randn({33})}, [](const Inputs& i) { return rms_norm(i[0], i[1], 1e-6, 1.0); },
      [](const Inputs& i) { return i[0] * torch::rsqrt(i[0].pow(2).mean(-1, true) + 1e-6) * (1.0 + i[1]); }, 2e-6);
}

TEST(LinearCrossEntropyOp, CapsTheLogits) {
  torch::manual_seed(1);
  const auto labels = torch::tensor({3, -100, 0, 7}, torch::kLong);
  expect_same(
      {torch::randn({4, 6}), torch::randn({9, 6}) * 3},
      [&](const Inputs& i) {
        return linear_cross_entropy(i[0], i[1], labels, {.scale = 0.7, .softcap = 2.5, .normalizer = 3.0});
      },
      [&](const Inputs& i) {
        const auto logits = torch::tanh(torch::matmul(i[0], i[1].t()) * 0.7 / 2.5) * 2.5;
        return torch::nn::functional::cross_entropy(logits, labels);
      },
      2e-6);
}

}  // namespace
}  // namespace tessera::nn
