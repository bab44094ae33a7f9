// A weight handle: a packed matrix multiplies like the dense matrix that it stands for.
#include "tessera/nn/weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "nn/kernels/bf16_gemm.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/ops/gemm.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lora_linear.h"
#include "support/fake_device.h"
#include "support/int8_codec.h"
#include "tessera/nn/init.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/packed_weight.h"

namespace tessera::nn {
namespace {

using testing::Int8Blocks;

/// [out, in], packed, and the same dense.
struct SameWeights {
  Weight packed, dense;
};

SameWeights same_weights(std::int64_t out, std::int64_t in, at::ScalarType dtype) {
  const auto matrix = std::make_shared<const tensor::PackedMatrix>(
      tensor::pack(std::make_shared<Int8Blocks>(48), at::randn({out, in})));
  return {Weight(matrix), Weight(tensor::unpack(*matrix, dtype))};
}

TEST(Weight, PackingAndUnpackingRoundsEachBlockToItsCodes) {
  at::manual_seed(1);
  const auto values = at::randn({7, 30});
  const auto packed = tensor::pack(std::make_shared<Int8Blocks>(48), values);
  const auto difference = (tensor::unpack(packed, at::kFloat) - values).abs().view(-1);
  for (std::int64_t begin = 0; begin < 210; begin += 48) {
    const auto n = std::min<std::int64_t>(48, 210 - begin);
    const auto absmax = values.view(-1).narrow(0, begin, n).abs().max().item<float>();
    EXPECT_LE(difference.narrow(0, begin, n).max().item<float>(), absmax / 254 * 1.0001f);
    EXPECT_GT(difference.narrow(0, begin, n).max().item<float>(), 0);
  }
}

TEST(Weight, PackedProductsHaveTheBitsOfDenseOnes) {
  at::manual_seed(2);
  for (auto dtype : {at::kFloat, at::kBFloat16})
    for (std::int64_t rows : {1, 8, 40, 130}) {
      const auto [packed, dense] = same_weights(70, 300, dtype);
      const auto x = at::randn({rows, 300}).to(dtype), g = at::randn({rows, 70}).to(dtype);
      const auto u = at::randn({rows, 8}).to(dtype), v = at::randn({8, 70}).to(dtype),
                 w = at::randn({8, 300}).to(dtype);
      EXPECT_EQ(packed.out_features(), 70);
      EXPECT_TRUE(at::equal(packed.dequantise(dtype), dense.tensor()));
      // Sums of few rows x W^T have another order. With tiles a library multiplies few rows by a dense matrix; its sum
      // is rounded before an adapter's is added.
      const bool is_few = rows <= 8 && dtype == at::kBFloat16;
      const auto expect_same = [&](const at::Tensor& got, const at::Tensor& expected, bool another_way) {
        EXPECT_TRUE(another_way ? at::allclose(got, expected, 0x1p-7, 0.1) : at::equal(got, expected)) << rows;
      };
      expect_same(packed.product(x), dense.product(x), is_few);
      expect_same(packed.product(x, u, v), dense.product(x, u, v), is_few);
      expect_same(packed.transposed_product(g), dense.transposed_product(g), is_few && kernels::has_bf16_tiles());
      expect_same(packed.transposed_product(g, u, w), dense.transposed_product(g, u, w),
                  is_few && kernels::has_bf16_tiles());
    }
}

TEST(Weight, PackedProductsOfManyTilesAreRoundedOnce) {
  at::manual_seed(6);
  constexpr std::int64_t kOut = 1300, kIn = 2100;
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (std::int64_t rows : {1, 40, 1100}) {
      if (rows > 1000 && dtype != at::kBFloat16) continue;  // more than are widened at a time
      const auto [packed, dense] = same_weights(kOut, kIn, dtype);
      const auto w = dense.tensor().to(at::kDouble);
      const auto x = at::randn({rows, kIn}).to(dtype), g = at::randn({rows, kOut}).to(dtype);
      const auto u = at::randn({rows, 8}).to(dtype), v = at::randn({8, kOut}).to(dtype),
                 z = at::randn({8, kIn}).to(dtype);
      const auto expect_rounded = [&](const at::Tensor& got, const at::Tensor& exact) {
        ASSERT_EQ(got.scalar_type(), dtype);
        // Of float32's sums, and of the last step: half of a unit in the last place, which is 2^-8 or 2^-11 of a value.
        const double rounding = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0;
        EXPECT_TRUE(at::allclose(got.to(at::kDouble), exact, rounding, 3e-4))
            << dtype << " " << rows << ": " << (got.to(at::kDouble) - exact).abs().max().item<double>();
      };
      const auto exact = [](const at::Tensor& a, const at::Tensor& b) {
        return a.to(at::kDouble).mm(b.to(at::kDouble));
      };
      expect_rounded(packed.product(x), exact(x, w.t()));
      expect_rounded(packed.transposed_product(g), exact(g, w));
      if (rows == 1) continue;  // the product of few rows may be rounded before the sum
      expect_rounded(packed.product(x, u, v), exact(x, w.t()) + exact(u, v));
      expect_rounded(packed.transposed_product(g, u, z), exact(g, w) + exact(u, z));
    }
}

TEST(Weight, OnlyADenseOneHasAGradient) {
  const auto [packed, dense] = same_weights(5, 6, at::kFloat);
  const auto x = at::randn({3, 6}), g = at::randn({3, 5});
  EXPECT_TRUE(at::allclose(dense.gradient(g, x), at::mm(g.t(), x)));
  EXPECT_ANY_THROW(packed.gradient(g, x));
  EXPECT_FALSE(packed.trains());
  EXPECT_FALSE(dense.trains());
  EXPECT_TRUE(Weight(at::ones({2, 2}).set_requires_grad(true)).trains());
}

/// The result and the gradients of all inputs.
std::vector<at::Tensor> result_and_gradients(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
                                             const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves, out;
  for (const auto& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad(true));
  const auto y = function(leaves);
  y.to(at::kFloat).pow(2).sum().backward();
  out.push_back(y.detach());
  for (const auto& t : leaves) out.push_back(t.grad());
  return out;
}

TEST(Weight, LinearAndAdaptersOverItHaveTheBitsOfDenseOnes) {
  at::manual_seed(3);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto [packed, dense] = same_weights(33, 64, dtype);
    const std::vector<at::Tensor> inputs = {at::randn({2, 20, 64}).to(dtype), at::randn({33}).to(dtype),
                                            at::randn({4, 64}), at::randn({33, 4}), at::rand({33}) + 0.5};
    const auto squares = dense.tensor().to(at::kFloat).pow(2).sum(1);
    const std::vector<std::function<at::Tensor(const Weight&, const std::vector<at::Tensor>&)>> functions = {
        [](const Weight& w, const auto& t) { return affine(t[0], w, t[1]); },
        [](const Weight& w, const auto& t) { return lora_linear(t[0], w, t[1], {t[2], t[3], 0.5, 0}); },
        [&](const Weight& w, const auto& t) {
          return dora_linear(t[0], w, t[1], {t[2], t[3], 0.5, 0}, t[4], squares);
        }};
    for (std::size_t f = 0; f < functions.size(); ++f) {
      const auto& function = functions[f];
      const bool adds_in_another_order = f == 2;  // DoRA's W A^T
      const auto over = [&](const Weight& w) { return [&](const auto& t) { return function(w, t); }; };
      const auto got = result_and_gradients(over(packed), inputs), expected = result_and_gradients(over(dense), inputs);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
        if (got[i].defined()) {
          const double near = dtype == at::kFloat ? 1e-5 : 2e-2;
          EXPECT_TRUE(adds_in_another_order ? at::allclose(got[i], expected[i], near, near)
                                            : at::equal(got[i], expected[i]))
              << f << " " << i;
        }
      }
    }
  }
}

struct PackedHolder : torch::nn::Module {
  explicit PackedHolder(const at::Tensor& values) {
    weight = register_parameter("weight", values);
    packed = register_module("weight", std::make_shared<PackedWeight>(std::make_shared<Int8Blocks>(16), weight));
  }
  at::Tensor weight;
  std::shared_ptr<PackedWeight> packed;
};

TEST(Weight, APackedParameterKeepsItsNameAndHasItsStatisticsBelow) {
  PackedHolder holder(at::ones({3, 8}));
  const auto named = holder.named_parameters();
  ASSERT_EQ(named.keys(), (std::vector<std::string>{"weight", "weight.absmax"}));
  EXPECT_EQ(named["weight"].scalar_type(), at::kByte);
  EXPECT_FALSE(named["weight"].requires_grad());
  EXPECT_TRUE(at::equal(named["weight.absmax"], at::ones({2})));
  EXPECT_TRUE(at::equal(Weight(holder.packed->matrix()).dequantise(at::kFloat), at::ones({3, 8})));
}

TEST(Weight, ALargePackedOneIsUnpackedInParts) {
  at::manual_seed(4);
  const auto [packed, dense] = same_weights(2100, 1100, at::kFloat);
  const auto x = at::randn({3, 1100}), g = at::randn({3, 2100}), u = at::randn({3, 4}), v = at::randn({4, 2100}),
             w = at::randn({4, 1100});
  const auto expect_near = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_TRUE(at::allclose(a, b, 1e-5, 1e-3)) << (a - b).abs().max().item<float>();
  };
  expect_near(packed.product(x), dense.product(x));
  expect_near(packed.product(x, u, v), dense.product(x, u, v));
  expect_near(packed.transposed_product(g), dense.transposed_product(g));
  expect_near(packed.transposed_product(g, u, w), dense.transposed_product(g, u, w));
  EXPECT_TRUE(at::equal(packed.dequantised_rows(2050, 50, at::kFloat), dense.tensor().narrow(0, 2050, 50)));
}

TEST(Weight, ALinearThatIsPackedKeepsItsShapeWhateverItsLayout) {
  at::manual_seed(5);
  for (auto layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    Linear layer(12, 20, true, at::kFloat, layout);
    for (auto& p : layer.parameters()) {
      auto values = p.detach();
      allocate(values);
      values.normal_();
    }
    const auto x = at::randn({5, 12});
    const auto dense = layer.handle().tensor().detach().contiguous();
    layer.pack(std::make_shared<Int8Blocks>(16));
    const auto rounded = tensor::unpack(tensor::pack(std::make_shared<Int8Blocks>(16), dense), at::kFloat);
    EXPECT_TRUE(at::equal(layer(x), affine(x, rounded, layer.bias)));
    EXPECT_EQ(layer.named_parameters().keys(), (std::vector<std::string>{"weight", "bias", "weight.absmax"}));
    EXPECT_FALSE(layer.weight.requires_grad());
  }
}

TEST(Weight, APackedOneMultipliesOnAnotherDevice) {
  const auto [packed, dense] = same_weights(5, 6, at::kFloat);
  auto on_device =
      std::make_shared<tensor::PackedMatrix>(tensor::pack(std::make_shared<Int8Blocks>(48), dense.tensor()));
  const auto expected = affine(at::ones({3, 6}), tensor::unpack(*on_device, at::kFloat), {});
  for (auto& field : on_device->fields) field = field.to(test::fake_device());
  const auto y = affine(at::ones({3, 6}).to(test::fake_device()), Weight(on_device), {});
  EXPECT_FALSE(y.is_cpu());
  EXPECT_TRUE(at::allclose(y.cpu(), expected));
}

TEST(Linear, AConv1DsGradientIsMadeAsItsWeightLies) {
  at::manual_seed(3);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    Linear conv(24, 40, true, dtype, WeightLayout::kInOut), plain(24, 40, true, dtype);
    reset_parameters(conv, 1);
    reset_parameters(plain, 1);
    {
      const at::NoGradGuard no_grad;
      plain.weight.copy_(conv.weight.t());
      plain.bias.copy_(conv.bias);
    }
    const auto x = at::randn({50, 24}).to(dtype), g = at::randn({50, 40}).to(dtype);
    const auto a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    const auto from_conv = conv(a), from_plain = plain(b);
    from_conv.backward(g);
    from_plain.backward(g);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_TRUE(at::allclose(from_conv, from_plain, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(a.grad(), b.grad(), tolerance, tolerance));
    EXPECT_TRUE(conv.weight.grad().is_contiguous());
    EXPECT_TRUE(at::allclose(conv.weight.grad(), plain.weight.grad().t(), tolerance, tolerance));
    EXPECT_TRUE(at::equal(conv.bias.grad(), plain.bias.grad()));
  }
}

TEST(Linear, AddsItsBiasAndSumsItsGradientInFloat32) {
  at::manual_seed(4);
  for (std::int64_t rows : {1, 33, 3000}) {
    Linear layer(24, 40, true, at::kBFloat16);
    reset_parameters(layer, 1);
    const auto x = at::randn({rows, 24}).to(at::kBFloat16), g = at::rand({rows, 40}).to(at::kBFloat16);
    const auto y = layer(x);
    y.backward(g);
    const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
    const auto exact = at::matmul(wide(x), wide(layer.weight).t()) + wide(layer.bias);
    EXPECT_LE((wide(y) - exact).abs().max().item<double>(), 0x1p-7 * exact.abs().max().item<double>());
    const auto sums = wide(g).sum(0);
    EXPECT_TRUE(at::allclose(wide(layer.bias.grad()), sums, 0x1p-8, 0)) << "one rounding";
  }
}

// With chunks of classes, and more rows than are taken at a time.
TEST(Weight, ThePackedOneOfAHeadHasTheLossOfItsValues) {
  const auto labels = (at::arange(600, at::kLong) * 173) % 2300;
  const auto loss_of = [&](const at::Tensor& values, const Weight& weight) {
    const auto hidden = values.clone().set_requires_grad(true);
    const auto loss = linear_cross_entropy(hidden, weight, labels, {.loss_dtype = at::kFloat});
    loss.backward();
    return std::pair(loss.detach(), hidden.grad());
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(9);
    const auto weights = same_weights(2300, 32, dtype);
    const auto hidden = at::randn({600, 32}).to(dtype);
    const auto packed = loss_of(hidden, weights.packed), dense = loss_of(hidden, weights.dense);
    EXPECT_GT(packed.second.abs().max().item<float>(), 0);
    EXPECT_TRUE(at::equal(packed.first, dense.first) && at::equal(packed.second, dense.second)) << dtype;
  }
}

TEST(Weight, ThePackedOneOfAHeadMultipliesInItsComputeDtype) {
  at::manual_seed(10);
  const auto matrix = std::make_shared<const tensor::PackedMatrix>(
      tensor::pack(std::make_shared<Int8Blocks>(48), at::randn({1100, 32})));
  const auto hidden = at::randn({20, 32}), labels = at::arange(20, at::kLong) * 50;
  const auto loss = linear_cross_entropy(hidden, Weight(matrix, PackedProduct::kOfValues, at::kBFloat16), labels, {});
  const CrossEntropyOptions in_float{.loss_dtype = at::kFloat};
  EXPECT_TRUE(at::equal(loss, linear_cross_entropy(hidden.to(at::kBFloat16), Weight(matrix), labels, in_float)));
}

}  // namespace
}  // namespace tessera::nn
