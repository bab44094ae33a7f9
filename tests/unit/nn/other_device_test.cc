// Every fused operation on a device that is not the CPU: value and all gradients against the CPU's kernel.
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "nn/composite/composite.h"
#include "nn/layers/activation.h"
#include "nn/ops/attention.h"
#include "nn/ops/dora.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/expert_rows.h"
#include "nn/ops/gemm.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lookup.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/noise.h"
#include "nn/ops/rms_norm.h"
#include "nn/ops/rotary.h"
#include "support/compare.h"
#include "support/fake_device.h"
#include "tensor/gradient_place.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

/// float32: the kernels' own exponential and tanh are right to about 1e-6. bfloat16: has eight bits, and a composite
/// rounds between its steps where a kernel rounds once.
/// Each with libtorch's operators alone, and with kernels of the device.
class OtherDevice : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  OtherDevice() {
    if (std::get<1>(GetParam())) kernels_.emplace();
  }
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  /// That the device's own kernels have computed since `before`, where there are any.
  void expect_launched(std::int64_t before) const {
    EXPECT_EQ(test::FakeKernels::launches() > before, kernels_.has_value());
  }
  double tolerance() const { return dtype() == at::kFloat ? 2e-5 : 3e-2; }

  at::Tensor values(at::IntArrayRef sizes, double scale = 1.0) {
    return (torch::randn(sizes, generator_) * scale).to(dtype());
  }
  at::Tensor floats(at::IntArrayRef sizes, double scale = 1.0) { return torch::randn(sizes, generator_) * scale; }

  /// f(leaves, place): a tensor, from the leaves; place() brings what else it needs to the device.
  template <class F>
  void expect_same(const Tensors& inputs, const F& f, const std::string& what) {
    const auto here = run(inputs, f, at::kCPU), there = run(inputs, f, test::fake_device());
    ASSERT_EQ(here.size(), there.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      const auto name = what + (i == 0 ? ": value" : ": gradient of input " + std::to_string(i - 1));
      EXPECT_EQ(here[i].scalar_type(), there[i].scalar_type()) << name;
      test::expect_close(there[i], here[i], tolerance(), name);
    }
  }

 private:
  template <class F>
  Tensors run(const Tensors& inputs, const F& f, at::Device device) {
    tensor::manual_seed(5);
    Tensors leaves;
    for (const auto& t : inputs) leaves.push_back(t.clone().to(device).set_requires_grad(true));
    const auto y = f(leaves, [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; });
    EXPECT_EQ(y.device(), device);
    auto same = at::detail::createCPUGenerator(3);
    y.backward(torch::randn(y.sizes(), same).to(y.scalar_type()).to(device));
    Tensors out{y.detach().cpu()};
    for (const auto& leaf : leaves) {
      EXPECT_EQ(leaf.grad().device(), device);
      out.push_back(leaf.grad().cpu());
    }
    return out;
  }

  std::optional<test::FakeKernels> kernels_;
  at::Generator generator_ = at::detail::createCPUGenerator(1);
};

/// A place for a parameter's gradient that only autograd may bring one to.
class HostPlace : public tensor::GradientPlace {
 public:
  explicit HostPlace(at::Tensor* collected) : collected_(collected) {}
  void operator()(const at::Tensor& parameter) override {
    *collected_ = parameter.grad().cpu();
    parameter.mutable_grad().reset();
  }
  std::shared_ptr<tensor::PreparedGradient> reserve() override {
    auto prepared = std::make_shared<tensor::PreparedGradient>();
    prepared->memory = at::empty({9, 8});
    prepared->place = this;
    return prepared;
  }
  void commit(const std::shared_ptr<tensor::PreparedGradient>&) override {
    ADD_FAILURE() << "an operation on another device writes a gradient to the host";
  }

 private:
  at::Tensor* collected_;
};

std::shared_ptr<const SequenceRows> rows_of(const std::vector<std::int64_t>& lengths) {
  auto rows = std::make_shared<SequenceRows>();
  std::int64_t begin = 0;
  for (const auto n : lengths) {
    rows->begin.push_back(begin);
    rows->length.push_back(n);
    begin += n;
  }
  return rows;
}

TEST_P(OtherDevice, RmsNorm) {
  for (const double offset : {0.0, 1.0}) {
    expect_same(
        {values({3, 5, 16}), values({16})},
        [&](const auto& x, const auto&) { return rms_norm(x[0], x[1], 1e-5, offset); },
        "offset " + std::to_string(offset));
  }
  expect_same(
      {values({4, 8}), floats({8})}, [](const auto& x, const auto&) { return rms_norm(x[0], x[1], 1e-6); },
      "a weight in float32");
}

TEST_P(OtherDevice, Rotary) {
  const auto angles = torch::arange(40, at::kFloat).reshape({10, 4}) * 0.37;
  const auto positions = torch::tensor({0, 1, 2, 0, 7, 9}, at::kLong);
  const auto before = test::FakeKernels::launches();
  for (const auto pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    for (const std::int64_t size : {8, 11}) {
      expect_same(
          {values({6, 2, 2, size}), values({6, 2, size})},
          [&](const auto& x, const auto& place) {
            const auto [q, k] = rotary(x[0], x[1], {place(angles.cos()), place(angles.sin()), place(positions), pairs});
            EXPECT_TRUE(q.is_contiguous() && k.is_contiguous());
            return at::cat({q.flatten(), k.flatten()});
          },
          "head of " + std::to_string(size));
    }
  }
  expect_launched(before);
}

TEST_P(OtherDevice, Activations) {
  const auto before = test::FakeKernels::launches();
  for (const auto a : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                       Activation::kQuickGelu, Activation::kReluSquared, Activation::kTanh, Activation::kSigmoid,
                       Activation::kIdentity, Activation::kClippedGelu, Activation::kRelu6, Activation::kLeakyRelu,
                       Activation::kMish, Activation::kLaplace}) {
    const auto name = "activation " + std::to_string(static_cast<int>(a));
    expect_same({values({5, 12})}, [&](const auto& x, const auto&) { return activate(x[0] * 1.0, a); }, name);
    expect_same(
        {values({5, 24})},
        [&](const auto& x, const auto&) { return gated(x[0].narrow(1, 0, 12), x[0].narrow(1, 12, 12), a); },
        name + ", gated");
  }
  expect_launched(before);
}

TEST_P(OtherDevice, AGateIsMadeAgainForTheLayerThatReadsIt) {
  expect_same(
      {values({5, 12}), values({5, 12}), values({3, 12})},
      [](const auto& x, const auto&) { return affine(gated(x[0], x[1], Activation::kSilu), x[2], {}); }, "gate");
}

TEST_P(OtherDevice, Dropout) {
  const auto before = test::FakeKernels::launches();
  for (const double p : {0.0, 0.3, 1.0}) {
    const auto name = "p " + std::to_string(p);
    expect_same({values({4, 3, 10})}, [&](const auto& x, const auto&) { return dropout(x[0] * 1.0, p); }, name);
    expect_same({values({6, 10})}, [&](const auto& x, const auto&) { return relu_dropout(x[0], p); }, name);
    expect_same(
        {values({6, 10}), values({6, 10})}, [&](const auto& x, const auto&) { return dropout_add(x[0], x[1], p); },
        name);
  }
  expect_launched(before);
}

TEST_P(OtherDevice, DropoutDrawsTheRowsKeys) {
  const auto keys = torch::tensor({17, 4, 99}, at::kLong);
  expect_same(
      {values({3, 40})},
      [&](const auto& x, const auto&) {
        const tensor::PassScope scope(keys, 12);
        return dropout(x[0], 0.5);
      },
      "keyed");
}

TEST_P(OtherDevice, Noise) {
  const auto range = torch::tensor({0.5f, 0.0f, 2.0f});
  expect_same(
      {values({3, 9})}, [&](const auto& x, const auto& place) { return x[0] + uniform_noise(x[0], place(range)); },
      "noise");
}

TEST_P(OtherDevice, RowsOfExperts) {
  const auto tokens = torch::tensor({0, 3, 4});
  expect_same(
      {values({5, 8}), values({3}), values({5})},
      [&](const auto& x, const auto& place) {
        const auto taken = take_rows(x[0], place(tokens));
        const auto out = add_weighted_rows(torch::zeros_like(x[0]), taken.rows, x[1], place(tokens));
        return add_weighted_rows(out, taken.rest, x[2], {});
      },
      "experts");
}

TEST_P(OtherDevice, Lookup) {
  const auto ids = torch::tensor({3, 0, 3, 6, 1, 0}, at::kLong).reshape({2, 3});
  for (const std::int64_t padding : {-1, 0}) {
    expect_same(
        {values({7, 5})}, [&](const auto& x, const auto& place) { return lookup(x[0], place(ids), {}, padding); },
        "padding " + std::to_string(padding));
    expect_same(
        {values({7, 5})}, [&](const auto& x, const auto&) { return lookup(x[0], ids, {}, padding); }, "ids on the CPU");
  }
  const auto table = values({4, 5}).to(test::fake_device());
  EXPECT_THROW(lookup(table, ids.to(test::fake_device())), DataError);
}

TEST_P(OtherDevice, LinearCrossEntropy) {
  const auto labels = torch::tensor({2, -100, 0, 8, 8, -1}, at::kLong);
  for (const double softcap : {0.0, 3.0}) {
    Tensors predictions;
    expect_same(
        {values({6, 8}), values({9, 8}), values({9})},
        [&](const auto& x, const auto& place) {
          at::Tensor best;
          CrossEntropyOptions options{
              .bias = x[2], .scale = 0.7, .softcap = softcap, .normalizer = 4, .predictions = &best};
          options.loss_scale = 1.5;
          const auto loss = linear_cross_entropy(x[0], x[1], place(labels), options);
          predictions.push_back(best.cpu());
          return loss;
        },
        "softcap " + std::to_string(softcap));
    EXPECT_TRUE(torch::equal(predictions[0], predictions[1]));
  }
}

TEST_P(OtherDevice, LogitsAreMadeInPiecesAndEveryKindOfLossIsRight) {
  const auto before = test::FakeKernels::launches();
  const auto labels = torch::tensor({2, -100, 0, 8, 8, -1, 3}, at::kLong);
  using Kind = TokenLoss::Kind;
  for (const auto& loss : {TokenLoss{}, TokenLoss{Kind::kDft, 0}, TokenLoss{Kind::kNll, 0.1}})
    for (const std::int64_t rows : {1, 2, 3, 7})
      expect_same(
          {values({7, 8}), values({9, 8})},
          [&](const auto& x, const auto& place) {
            CrossEntropyOptions options{.scale = 0.7, .softcap = 3, .normalizer = 4, .token_loss = loss};
            options.loss_dtype = at::kFloat;
            if (x[0].is_cpu()) return linear_cross_entropy(x[0], x[1], labels, options);
            return composite::linear_cross_entropy(x[0], x[1], place(labels), options, 9 * rows);
          },
          std::to_string(rows) + " rows");
  expect_launched(before);
}

TEST_P(OtherDevice, TiedTableGetsBothGradients) {
  const auto ids = torch::tensor({2, 5, 0, 5}, at::kLong), labels = torch::tensor({5, 0, 5, -100}, at::kLong);
  expect_same(
      {values({9, 8})},
      [&](const auto& x, const auto& place) {
        const auto slot = c10::make_intrusive<SharedGradient>();
        CrossEntropyOptions options{.weight_gradient = slot, .loss_dtype = at::kFloat};
        return linear_cross_entropy(lookup(x[0], place(ids), slot), x[0], place(labels), options);
      },
      "tied");
}

TEST_P(OtherDevice, GradientsReachTheirPlacesThroughAutograd) {
  const auto values_of = [&](at::IntArrayRef sizes) { return values(sizes).to(test::fake_device()); };
  at::Tensor collected[2];
  at::Tensor weights[2] = {values_of({9, 8}).set_requires_grad(true), values_of({8, 8}).set_requires_grad(true)};
  for (int i = 0; i < 2; ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(weights[i], std::make_unique<HostPlace>(&collected[i]));
  const auto ids = torch::tensor({2, 5, 0}, at::kLong).to(test::fake_device());
  const auto slot = c10::make_intrusive<SharedGradient>();
  const auto hidden = affine(lookup(weights[0], ids, slot), weights[1], {});
  linear_cross_entropy(hidden, weights[0], ids, {.weight_gradient = slot}).backward();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(collected[i].defined());
    EXPECT_GT(collected[i].abs().sum().item<double>(), 0);
  }
  EXPECT_FALSE(slot->value.defined());
}

TEST_P(OtherDevice, Affine) {
  expect_same(
      {values({2, 3, 8}), values({6, 8}, 0.4), values({6})},
      [](const auto& x, const auto&) { return affine(x[0], x[1], x[2]); }, "with bias");
  expect_same(
      {values({5, 8}), values({6, 8}, 0.4)}, [](const auto& x, const auto&) { return affine(x[0], x[1], {}); },
      "without bias");
}

TEST_P(OtherDevice, LowRankAdapters) {
  for (const double p : {0.0, 0.4}) {
    for (const bool with_bias : {false, true}) {
      const auto name = "p " + std::to_string(p) + (with_bias ? ", bias" : "");
      Tensors inputs{values({2, 4, 12}), values({6, 12}, 0.3), floats({3, 12}, 0.3), floats({6, 3}, 0.3)};
      if (with_bias) inputs.push_back(values({6}));
      const auto bias = [&](const auto& x) { return with_bias ? x[4] : at::Tensor(); };
      if (dtype() == at::kFloat)  // where x needs another dtype than A, the last bits of its gradient differ
        expect_same(
            inputs, [&](const auto& x, const auto&) { return lora_linear(x[0], x[1], bias(x), {x[2], x[3], 0.5, p}); },
            "LoRA, " + name);
      inputs.push_back(floats({6}) + 3);
      expect_same(
          inputs,
          [&](const auto& x, const auto&) {
            return dora_linear(x[0], x[1], bias(x), {x[2], x[3], 0.5, p}, x.back(), squared_norms(x[1], 1));
          },
          "DoRA, " + name);
    }
  }
}

TEST_P(OtherDevice, Attention) {
  struct Variant {
    std::string name;
    bool bias, causal, hidden;
    double scale, dropout;
  };
  const auto visible = torch::tensor({1, 1, 0, 1, 0, 0, 0, 1, 1}, at::kByte);  // the middle sequence sees nothing
  for (const auto& o : std::vector<Variant>{{"plain", false, false, false, 1.0, 0.0},
                                            {"bias, causal", true, true, false, 1.0, 0.0},
                                            {"hidden keys, scale", true, false, true, 0.3, 0.0},
                                            {"all", true, true, true, 0.5, 0.25}}) {
    Tensors inputs{values({9, 8}), values({9, 8}), values({9, 8})};
    if (o.bias) inputs.push_back(values({2, 7}));
    expect_same(
        inputs,
        [&](const auto& x, const auto& place) {
          AttentionOptions options;
          options.scale = o.scale;
          options.causal = o.causal;
          options.dropout = o.dropout;
          if (o.hidden) options.key_visible = place(visible);
          options.query_rows = options.key_rows = rows_of({4, 3, 2});
          return attention(query_heads(x[0], 2), key_heads(x[1], 2), key_heads(x[2], 2), options,
                           {.bias = o.bias ? x[3] : at::Tensor()});
        },
        o.name);
  }
}

TEST_P(OtherDevice, DisentangledAttention) {
  struct Variant {
    std::string name;
    bool with_query, with_key, hidden;
    double dropout;
  };
  const auto visible = torch::tensor({1, 1, 0, 1, 0, 0, 0, 1, 1}, at::kByte);
  const auto rows = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 1, 1, 2, 3, 3, 4});
  for (const auto& o : std::vector<Variant>{{"both", true, true, false, 0.0},
                                            {"queries", true, false, true, 0.0},
                                            {"keys", false, true, false, 0.25},
                                            {"all", true, true, true, 0.25}}) {
    expect_same(
        {values({9, 8}), values({9, 8}), values({9, 8}), values({5, 8}), values({5, 8})},
        [&](const auto& x, const auto& place) {
          AttentionOptions options;
          options.scale = 0.3;
          options.dropout = o.dropout;
          options.hides_queries = true;
          if (o.hidden) options.key_visible = place(visible);
          options.query_rows = options.key_rows = rows_of({4, 3, 2});
          const DistanceTables tables{o.with_query ? x[3] : at::Tensor(), o.with_key ? x[4] : at::Tensor(), rows};
          return attention(query_heads(x[0], 2), key_heads(x[1], 2), key_heads(x[2], 2), options,
                           {.distances = tables}) +
                 0 * (x[3].sum() + x[4].sum());
        },
        o.name);
  }
}

TEST_P(OtherDevice, AttentionToOtherRows) {
  expect_same(
      {values({5, 8}), values({9, 8}), values({9, 8})},
      [&](const auto& x, const auto&) {
        AttentionOptions options;
        options.query_rows = rows_of({2, 3});
        options.key_rows = rows_of({5, 4});
        return attention(query_heads(x[0], 4), key_heads(x[1], 4), key_heads(x[2], 4), options);
      },
      "cross");
}

TEST_P(OtherDevice, CausalAttention) {
  struct Variant {
    std::string name;
    std::function<void(AttentionOptions&)> set;
    bool hidden = false, biased = false;
  };
  const auto visible = torch::tensor({0, 1, 0, 1, 1, 0, 0, 0, 1}, at::kByte);  // some queries see nothing
  const auto slopes = torch::tensor({0.5f, 0.25f, 0.125f, 0.3f});
  const auto places = torch::tensor({0., 1., 2., 3., 4., 0., 1., 2., 3.}, at::kFloat);
  const std::vector<Variant> variants = {
      {"plain", [](auto&) {}},
      {"scale, window", [](auto& o) { o.scale = 0.4, o.window = 2; }},
      {"softcap", [](auto& o) { o.softcap = 1.5, o.scale = 0.7; }},
      {"dropout", [](auto& o) { o.dropout = 0.3; }},
      {"hidden keys", [](auto&) {}, true},
      {"hidden keys, window, softcap", [](auto& o) { o.window = 3, o.softcap = 2.0; }, true},
      {"hidden keys, blind sees past", [](auto& o) { o.blind_query_sees_past = true; }, true},
      {"linear bias", [](auto& o) { o.bias_scale = 0.8; }, false, true},
      {"linear bias in bfloat16, all", [](auto& o) { o.bias_in_bfloat16 = true, o.scale = 0.5, o.dropout = 0.2; }, true,
       true}};
  for (const auto& variant : variants) {
    expect_same(
        {values({9, 2, 2, 4}), values({9, 2, 4}), values({9, 2, 4})},
        [&](const auto& x, const auto& place) {
          AttentionOptions options;
          options.causal = true;
          variant.set(options);
          if (variant.hidden) options.key_visible = place(visible);
          if (variant.biased) options.slopes = place(slopes), options.key_position = place(places);
          options.query_rows = options.key_rows = rows_of({5, 4});
          return attention(x[0], x[1], x[2], options);
        },
        variant.name);
  }
}

TEST_P(OtherDevice, CausalAttentionOfRowsThatAreABatch) {
  for (const std::int64_t heads : {1, 2})  // of a key
    for (const std::int64_t keys : {3, 1})
      expect_same(
          {values({8, keys, heads, 4}), values({8, keys, 4}), values({8, keys, 4})},
          [&](const auto& x, const auto&) {
            AttentionOptions options;
            options.causal = true;
            options.scale = 0.4;
            options.query_rows = options.key_rows = rows_of({4, 4});
            return attention(x[0], x[1], x[2], options);
          },
          std::to_string(keys) + " keys, " + std::to_string(heads) + " heads of each");
}

TEST_P(OtherDevice, CausalAttentionBehindACache) {
  expect_same(
      {values({3, 1, 2, 4}), values({12, 1, 4}), values({12, 1, 4})},
      [&](const auto& x, const auto&) {
        AttentionOptions options;
        options.causal = true;
        options.query_rows = rows_of({1, 2});
        auto keys = std::make_shared<SequenceRows>();
        keys->begin = {0, 6};  // with room behind each
        keys->length = {4, 5};
        options.key_rows = keys;
        // The CPU's kernel leaves keys that no sequence has without a gradient, so none is asked for.
        return attention(x[0], x[1].detach(), x[2].detach(), options) + 0 * (x[1].sum() + x[2].sum());
      },
      "cache");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OtherDevice,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(c10::toString(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Kernels" : "Operators");
                         });

}  // namespace
}  // namespace tessera::nn
