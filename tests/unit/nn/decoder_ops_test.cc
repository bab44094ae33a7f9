// The operations of decoders against composites: value and every gradient.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <numeric>

#include "nn/kernels/bf16_dot.h"
#include "nn/layers/activation.h"
#include "nn/ops/attention.h"
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
                 const AttentionOptions& o, std::int64_t begin) {
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

AttentionOptions options_of(const AttentionCase& c) {
  AttentionOptions o;
  o.causal = true;
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
  const auto fused = [&](const Inputs& i) { return attention(i[0], i[1], i[2], o); };
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

// As decoding asks for them: one query a sequence, over keys and values that lie in a wider cache.
TEST_P(CausalAttentionOp, GivesTheLastTokensAloneWhatTheyGetAmongAll) {
  const auto& c = GetParam();
  if (c.dropout > 0) GTEST_SKIP() << "nothing is dropped while decoding";
  torch::manual_seed(2);
  const auto all = options_of(c);
  const std::int64_t tokens = tokens_of(c);
  const auto make = [&](at::IntArrayRef sizes) { return torch::randn(sizes).to(c.dtype); };
  const auto q = make({tokens, c.kv, c.groups, c.size}), k = make({tokens, c.kv + 1, c.size + 3}),
             v = make({tokens, c.kv + 2, c.size + 1});
  const auto keys = k.narrow(1, 1, c.kv).narrow(2, 0, c.size), values = v.narrow(1, 0, c.kv).narrow(2, 1, c.size);
  auto last = std::make_shared<SequenceRows>();
  std::vector<std::int64_t> places;
  for (std::size_t s = 0; s < c.lengths.size(); ++s) {
    last->begin.push_back(static_cast<std::int64_t>(s));
    last->length.push_back(1);
    places.push_back(all.key_rows->begin[s] + c.lengths[s] - 1);
  }
  auto alone = all;
  alone.query_rows = last;
  const auto place = torch::tensor(places);
  const auto got = attention(q.index_select(0, place), keys, values, alone),
             expected = attention(q, keys, values, all).index_select(0, place);
  EXPECT_TRUE(at::allclose(got, expected, c.tolerance, c.tolerance)) << (got - expected).abs().max();
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CausalAttentionOp,
    testing::Values(
        AttentionCase{.name = "packed", .lengths = {5, 1, 9}},
        AttentionCase{.name = "one key head", .lengths = {7}, .kv = 1, .groups = 4},
        AttentionCase{.name = "odd sizes", .lengths = {9, 4}, .kv = 1, .groups = 7, .size = 21},
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
    return attention(i[0].to(dtype), i[1].to(dtype), i[2].to(dtype), o).to(at::kBFloat16);
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

/// What attention of encoders, and of decoders behind an encoder or with a trained bias, has beside AttentionCase.
struct WholeCase {
  std::string name;
  std::vector<std::int64_t> queries, keys;  // lengths
  bool causal = false, bias = false, hidden_keys = false, hides_queries = false;
  int distances = 0;  // 1: with queries, 2: with keys, 3: with both
  double dropout = 0;
  std::int64_t buckets = 0;  // of far distances, which share rows of the tables
};

void PrintTo(const WholeCase& c, std::ostream* out) {
  *out << c.name;
}

class WholeAttention : public testing::TestWithParam<WholeCase> {
 protected:
  static constexpr std::int64_t kHeads = 2, kSize = 16;

  WholeAttention() {
    torch::manual_seed(1);
    const auto rows_of = [](const std::vector<std::int64_t>& lengths) {
      auto rows = std::make_shared<SequenceRows>();
      std::int64_t begin = 0;
      for (auto n : lengths) rows->begin.push_back(begin), rows->length.push_back(n), begin += n;
      return rows;
    };
    options_.scale = 0.3;
    options_.causal = c_.causal;
    options_.dropout = c_.dropout;
    options_.hides_queries = c_.hides_queries;
    options_.query_rows = rows_of(c_.queries);
    options_.key_rows = rows_of(c_.keys);
    const auto tokens = [](const SequenceRows& rows) { return rows.begin.back() + rows.length.back(); };
    const std::int64_t m = tokens(*options_.query_rows), n = tokens(*options_.key_rows);
    if (c_.hidden_keys) {
      options_.key_visible = torch::ones({n}, torch::kByte);
      options_.key_visible.narrow(0, 0, 2).zero_();
      options_.key_visible[c_.keys[0] - 1] = 0;
    }
    const std::int64_t longest = options_.query_rows->longest();
    inputs_ = {torch::randn({m, kHeads * kSize}), torch::randn({n, kHeads * kSize}), torch::randn({n, kHeads * kSize})};
    if (c_.bias) inputs_.push_back(torch::randn({kHeads, longest + options_.key_rows->longest() - 1}));
    if (c_.distances > 0) {
      const std::int64_t near = c_.buckets > 0 ? c_.buckets : longest - 1;  // beyond, two distances share a row
      rows_ = std::make_shared<std::vector<std::int64_t>>();
      for (std::int64_t d = 1 - longest; d < longest; ++d) {
        const auto far = std::max<std::int64_t>(0, std::abs(d) - near);
        rows_->push_back(longest + 3 + (d < 0 ? -1 : 1) * (std::min(std::abs(d), near) + (far + 1) / 2));
      }
      for (const int side : {1, 2})
        if (c_.distances & side) inputs_.push_back(torch::randn({2 * longest + 9, kHeads * kSize}));
    }
  }

  at::Tensor attend(const Inputs& i, at::ScalarType dtype = at::kFloat) const {
    const auto at = [&](std::size_t k) { return i[k].to(dtype); };
    ScoreTerms terms;
    if (c_.bias) terms.bias = at(3);
    if (c_.distances & 1) terms.distances.with_query = at(3);
    if (c_.distances & 2) terms.distances.with_key = at(c_.distances == 3 ? 4 : 3);
    terms.distances.rows = rows_;
    tensor::manual_seed(7);
    return attention(query_heads(at(0), kHeads), key_heads(at(1), kHeads), key_heads(at(2), kHeads), options_, terms);
  }

  /// One sequence at a time, every score written out.
  at::Tensor eager(const Inputs& i) const {
    std::vector<at::Tensor> out;
    for (std::size_t s = 0; s < c_.queries.size(); ++s) {
      const std::int64_t m = c_.queries[s], n = c_.keys[s];
      const auto heads = [&](const at::Tensor& x, const SequenceRows& rows) {
        return x.narrow(0, rows.begin[s], rows.length[s]).view({rows.length[s], kHeads, kSize}).transpose(0, 1);
      };
      const auto q = heads(i[0], *options_.query_rows), k = heads(i[1], *options_.key_rows);
      auto scores = torch::matmul(q, k.transpose(1, 2));
      if (c_.distances > 0) {
        std::vector<std::int64_t> places;
        const auto zero = static_cast<std::int64_t>(rows_->size() / 2);
        for (std::int64_t a = 0; a < m; ++a)
          for (std::int64_t b = 0; b < n; ++b) places.push_back((*rows_)[static_cast<std::size_t>(zero + a - b)]);
        const auto of = [&](const at::Tensor& table) {  // [M, N, H, D]
          return table.index_select(0, torch::tensor(places)).view({m, n, kHeads, kSize});
        };
        if (c_.distances & 1) scores = scores + torch::einsum("hmd,mnhd->hmn", {q, of(i[3])});
        if (c_.distances & 2) scores = scores + torch::einsum("hnd,mnhd->hmn", {k, of(i.back())});
      }
      scores = scores * options_.scale;
      if (c_.bias) scores = scores + bias_of_pairs(i[3], options_.query_rows->longest(), m, n);
      auto seen = torch::ones({m, n}, torch::kBool);
      if (c_.causal) seen = seen.tril(n - m);
      if (c_.hidden_keys) {
        const auto visible = options_.key_visible.narrow(0, options_.key_rows->begin[s], n).ne(0);
        seen = seen.logical_and(visible.unsqueeze(0));
        if (c_.hides_queries) seen = seen.logical_and(visible.unsqueeze(1));
      }
      scores = torch::where(seen, scores, torch::full({}, -1e30, scores.options()));
      out.push_back(torch::matmul(torch::softmax(scores, -1), heads(i[2], *options_.key_rows))
                        .transpose(0, 1)
                        .reshape({m, kHeads * kSize}));
    }
    return torch::cat(out);
  }

  const WholeCase c_ = GetParam();
  AttentionOptions options_;
  std::shared_ptr<std::vector<std::int64_t>> rows_;
  Inputs inputs_;
};

TEST_P(WholeAttention, EqualsEagerAttention) {
  if (c_.dropout > 0) GTEST_SKIP() << "masks are this project's own";
  const auto fused = [&](const Inputs& i) { return attend(i); };
  const auto composite = [&](const Inputs& i) { return eager(i); };
  // The gradient of a query that sees nothing goes nowhere in the composite; a hidden one has none in both.
  if (c_.hidden_keys && c_.causal)
    test::expect_close(fused(inputs_), composite(inputs_), 2e-5, "value");
  else
    expect_same(inputs_, fused, composite, 5e-5);
}

TEST_P(WholeAttention, InPairsEqualsFloat32) {
  if (!kernels::has_bf16_dot()) GTEST_SKIP() << "no instructions for pairs of bfloat16";
  Inputs inputs;
  for (const auto& t : inputs_) inputs.push_back(t.to(at::kBFloat16));
  // What is freed here is likely to be scratch memory below.
  Inputs none;
  for (const auto& t : inputs) none.push_back(at::full_like(t, NAN).set_requires_grad(true));
  attend(none, at::kBFloat16).sum().backward();
  expect_same(
      inputs, [&](const Inputs& i) { return attend(i, at::kBFloat16); },
      [&](const Inputs& i) { return attend(i).to(at::kBFloat16); }, 2.5e-2);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, WholeAttention,
    testing::Values(
        WholeCase{.name = "encoder", .queries = {5, 1, 70}, .keys = {5, 1, 70}},
        WholeCase{.name = "behind an encoder", .queries = {5, 1, 70}, .keys = {40, 3, 33}},
        WholeCase{.name = "many queries of few keys", .queries = {200}, .keys = {3}},
        WholeCase{.name = "no keys and no queries", .queries = {3, 5, 0}, .keys = {0, 7, 4}},
        WholeCase{.name = "hidden keys", .queries = {7, 4}, .keys = {75, 4}, .hidden_keys = true},
        WholeCase{.name = "a trained bias", .queries = {40, 70, 7}, .keys = {40, 70, 7}, .bias = true},
        WholeCase{.name = "a causal bias", .queries = {40, 150, 7}, .keys = {40, 150, 7}, .causal = true, .bias = true},
        WholeCase{.name = "a causal bias behind a prefix",
                  .queries = {40, 7},
                  .keys = {45, 12},
                  .causal = true,
                  .bias = true},
        WholeCase{.name = "a causal bias and hidden keys",
                  .queries = {40, 70},
                  .keys = {40, 70},
                  .causal = true,
                  .bias = true,
                  .hidden_keys = true},
        WholeCase{.name = "a bias and dropout", .queries = {75, 7}, .keys = {75, 7}, .bias = true, .dropout = 0.3},
        WholeCase{.name = "distances with queries", .queries = {40, 70}, .keys = {40, 70}, .distances = 1},
        WholeCase{.name = "distances with keys", .queries = {40, 70}, .keys = {40, 70}, .distances = 2},
        WholeCase{.name = "distances in buckets",
                  .queries = {40, 150, 1},
                  .keys = {40, 150, 1},
                  .distances = 3,
                  .buckets = 9},
        WholeCase{.name = "distances of hidden tokens",
                  .queries = {40, 70},
                  .keys = {40, 70},
                  .hidden_keys = true,
                  .hides_queries = true,
                  .distances = 3,
                  .buckets = 9},
        WholeCase{
            .name = "distances and dropout", .queries = {75, 7}, .keys = {75, 7}, .distances = 3, .dropout = 0.3}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST(CausalAttentionOp, ReadsHeadsOfAFusedProjectionInPlace) {
  torch::manual_seed(1);
  AttentionOptions o;
  o.causal = true;
  o.query_rows = o.key_rows = std::make_shared<SequenceRows>(SequenceRows::uniform(2, 4, 4));
  expect_same(
      {torch::randn({8, 2 * 4 * 6})},
      [&](const Inputs& i) {
        const auto parts = i[0].view({8, 2, 4, 6}).split_with_sizes({2, 1, 1}, 2);
        return attention(parts[0], parts[1].squeeze(2), parts[2].squeeze(2), o);
      },
      [&](const Inputs& i) {
        const auto x = i[0].view({8, 2, 4, 6});
        return attention(x.narrow(2, 0, 2).contiguous(), x.select(2, 2).contiguous(), x.select(2, 3).contiguous(), o);
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
