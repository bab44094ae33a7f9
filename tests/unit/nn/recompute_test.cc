// Inputs that are computed again in backward: the same bits as inputs that are kept, and no memory of theirs.
#include "nn/ops/recompute.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>

#include "nn/layers/activation.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/rms_norm.h"
#include "tensor/rng.h"
#include "tessera/nn/block.h"
#include "tessera/nn/init.h"
#include "tessera/nn/norm.h"
#include "unit/nn/same_gradients.h"

namespace tessera::nn {
namespace {

using Producer = std::function<at::Tensor(const Inputs& leaves)>;
using StorageWatch = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct RecomputeCase {
  std::string name;
  Producer make;  // of leaves 0 and 1, [6, 37] each, and 2, [37]
  at::ScalarType dtype = at::kFloat;
};

void PrintTo(const RecomputeCase& c, std::ostream* out) {
  *out << c.name;
}

Inputs leaves_of(at::ScalarType dtype) {
  torch::manual_seed(5);
  Inputs leaves{torch::randn({6, 37}),       torch::randn({6, 37}),       torch::randn({37}),
                torch::randn({8, 37}) * 0.3, torch::randn({4, 37}) * 0.3, torch::randn({8, 4}) * 0.3};
  for (auto& t : leaves) t = t.to(dtype).requires_grad_();
  return leaves;
}

/// What a producer made, without its recipe.
at::Tensor copied(const at::Tensor& y) {
  return y.clone();
}
at::Tensor itself(const at::Tensor& y) {
  return y;
}

/// Two consumers that share their input: a linear layer and an adapted one with dropout.
at::Tensor consume(const at::Tensor& y, const Inputs& leaves) {
  tensor::manual_seed(11);
  return affine(y, leaves[3], {}) + lora_linear(y, leaves[3], {}, {leaves[4], leaves[5], 0.5, 0.25});
}

at::Tensor consume_once(const at::Tensor& y, const Inputs& leaves) {
  return affine(y, leaves[3], {});
}
at::Tensor consume_adapted(const at::Tensor& y, const Inputs& leaves) {
  tensor::manual_seed(11);
  return lora_linear(y, leaves[3].detach(), {}, {leaves[4], leaves[5], 0.5, 0.25});
}
/// The layer's gradient of its input is not all of the input's.
at::Tensor consume_beside_another(const at::Tensor& y, const Inputs& leaves) {
  return affine(y, leaves[3], {}) + y.narrow(1, 0, 8);
}

using Consumer = at::Tensor (*)(const at::Tensor&, const Inputs&);

Inputs gradients(const RecomputeCase& c, at::Tensor (*pass)(const at::Tensor&), Consumer consumer = consume) {
  auto leaves = leaves_of(c.dtype);
  const auto out = consumer(pass(c.make(leaves)), leaves);
  out.backward(torch::ones_like(out) * 0.1);
  Inputs grads{out.detach()};
  for (const auto& t : leaves) grads.push_back(t.grad());
  return grads;
}

void expect_equal(const Inputs& kept, const Inputs& recomputed) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].defined(), recomputed[i].defined()) << "tensor " << i;
    if (kept[i].defined()) {
      EXPECT_TRUE(torch::equal(kept[i], recomputed[i])) << "tensor " << i;
    }
  }
}

std::vector<RecomputeCase> producers() {
  const auto gate = [](Activation a) { return [a](const Inputs& l) { return gated(l[0], l[1], a); }; };
  const auto plain = [](Activation a) { return [a](const Inputs& l) { return activate(l[0], a); }; };
  const Producer norm = [](const Inputs& l) { return rms_norm(l[0], l[2], 1e-5); };
  return {{"RmsNorm", norm},
          {"RmsNormBfloat16", norm, at::kBFloat16},
          {"RmsNormHalf", norm, at::kHalf},
          {"RmsNormWithOffset", [](const Inputs& l) { return rms_norm(l[0], l[2], 1e-5, 1.0); }},
          {"SiluGate", gate(Activation::kSilu)},
          {"SiluGateBfloat16", gate(Activation::kSilu), at::kBFloat16},
          {"GeluTanhGate", gate(Activation::kGeluTanh)},
          {"GeluGate", gate(Activation::kGelu)},
          {"HalvesOfOneTensor",
           [](const Inputs& l) {
             const auto halves = torch::cat({l[0], l[1]}, 1).split(37, 1);
             return gated(halves[0], halves[1], Activation::kSilu);
           }},
          {"DroppedGate",
           [](const Inputs& l) {
             tensor::manual_seed(7);
             return dropout(gated(l[0], l[1], Activation::kGelu), 0.3);
           }},
          {"Gelu", plain(Activation::kGelu)},
          {"GeluTanh", plain(Activation::kGeluTanh)},
          {"Silu", plain(Activation::kSilu)},
          {"QuickGelu", plain(Activation::kQuickGelu)},
          {"ReluSquared", plain(Activation::kReluSquared)}};
}

class RecomputedInput : public testing::TestWithParam<RecomputeCase> {};

TEST_P(RecomputedInput, GivesTheBitsOfAKeptOne) {
  for (const auto consumer : {consume, consume_once, consume_adapted, consume_beside_another})
    expect_equal(gradients(GetParam(), copied, consumer), gradients(GetParam(), itself, consumer));
}

TEST_P(RecomputedInput, LeavesNoMemoryBetweenForwardAndBackward) {
  const auto leaves = leaves_of(GetParam().dtype);
  auto y = GetParam().make(leaves);
  const StorageWatch watch(y.storage().getWeakStorageImpl());
  const auto out = consume(y, leaves);
  y.reset();
  EXPECT_TRUE(watch.expired());
  out.sum().backward();
  EXPECT_TRUE(leaves[3].grad().defined());
}

TEST_P(RecomputedInput, ServesASecondBackward) {
  const auto leaves = leaves_of(GetParam().dtype);
  const auto out = consume(GetParam().make(leaves), leaves).sum();
  const auto first = torch::autograd::grad({out}, {leaves[3], leaves[4]}, {}, /*retain_graph=*/true);
  const auto again = torch::autograd::grad({out}, {leaves[3], leaves[4]});
  EXPECT_TRUE(torch::equal(first[0], again[0]));
  EXPECT_TRUE(torch::equal(first[1], again[1]));
}

INSTANTIATE_TEST_SUITE_P(Producers, RecomputedInput, testing::ValuesIn(producers()),
                         [](const auto& info) { return info.param.name; });

TEST(RecomputedInput, OfALayerNormIsTheSame) {
  LayerNorm norm(37, 1e-5);
  reset_parameters(norm, 1);
  const RecomputeCase c{"LayerNorm", [&](const Inputs& l) { return norm(l[0]); }};
  const auto kept = gradients(c, copied), recomputed = gradients(c, itself);
  expect_equal(kept, recomputed);
}

// Central differences in float32 of a smooth function: a few digits.
TEST(RecomputedInput, GradientsAreThoseOfFiniteDifferences) {
  const auto leaves = leaves_of(at::kFloat);
  const auto f = [&] {
    const auto y = gated(rms_norm(leaves[0], leaves[2], 1e-5), leaves[1], Activation::kSilu);
    return lora_linear(y, leaves[3], {}, {leaves[4], leaves[5], 0.5, 0.0}).sum();
  };
  f().backward();
  for (const auto& leaf : leaves) {
    const at::NoGradGuard no_grad;
    auto flat = leaf.detach().view(-1);
    for (std::int64_t i = 0; i < flat.numel(); i += 7) {
      const float old = flat[i].item<float>();
      flat[i] = old + 1e-2f;
      const double above = f().item<double>();
      flat[i] = old - 1e-2f;
      const double below = f().item<double>();
      flat[i] = old;
      EXPECT_NEAR(leaf.grad().view(-1)[i].item<double>(), (above - below) / 2e-2, 2e-2);
    }
  }
}

TEST(RecomputedInput, IsKeptWhereItWasWrittenToSince) {
  const auto leaves = leaves_of(at::kFloat);
  auto y = rms_norm(leaves[0], leaves[2], 1e-5);
  y.mul_(2);
  affine(y, leaves[3], {}).sum().backward();
  EXPECT_TRUE(torch::allclose(leaves[3].grad(), y.detach().sum(0).expand({8, 37})));
}

TEST(RecomputedInput, IsKeptWhereItsSourceWasWrittenToSince) {
  const auto leaves = leaves_of(at::kFloat);
  const auto x = leaves[0].detach().clone();
  const auto y = rms_norm(x, leaves[2], 1e-5);
  const auto value = y.detach().clone();
  x.zero_();
  const auto out = affine(y, leaves[3], {}).sum();
  EXPECT_TRUE(torch::allclose(torch::autograd::grad({out}, {leaves[3]})[0], value.sum(0).expand({8, 37})));
}

TEST(RecomputedInput, IsMadeFromTheWeightOfTheForward) {
  const auto leaves = leaves_of(at::kFloat);
  const auto y = rms_norm(leaves[0], leaves[2], 1e-5);
  const auto value = y.detach().clone();
  const auto out = affine(y, leaves[3], {}).sum();
  leaves[2].detach().zero_();  // as when its unit is released
  EXPECT_TRUE(torch::allclose(torch::autograd::grad({out}, {leaves[3]})[0], value.sum(0).expand({8, 37})));
}

TEST(RecomputedInput, KeepsItsLeadingSizes) {
  const auto leaves = leaves_of(at::kFloat);
  const auto x = leaves[0].detach().view({2, 3, 37}).requires_grad_();
  const auto run = [&](bool kept) {
    const auto y = rms_norm(x, leaves[2], 1e-5);
    return torch::autograd::grad({affine(kept ? y.clone() : y, leaves[3], {}).square().sum()}, {x, leaves[3]});
  };
  const auto kept = run(true), recomputed = run(false);
  EXPECT_TRUE(torch::equal(kept[0], recomputed[0]));
  EXPECT_TRUE(torch::equal(kept[1], recomputed[1]));
}

TEST(RecomputedInput, WorksInsideACheckpoint) {
  const auto run = [](bool checkpointed) {
    const auto leaves = leaves_of(at::kFloat);
    const Recomputable block = [&](std::vector<at::Tensor> in) {
      return std::vector<at::Tensor>{consume(rms_norm(in[0], leaves[2], 1e-5), leaves)};
    };
    const auto out = checkpointed ? checkpoint(block, {leaves[0]}) : block({leaves[0]});
    out[0].square().sum().backward();
    return Inputs{leaves[0].grad(), leaves[2].grad(), leaves[3].grad(), leaves[4].grad()};
  };
  const auto plain = run(false), again = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], again[i])) << i;
}

}  // namespace
}  // namespace tessera::nn
