// bnb_4bit_compute_dtype: in which dtype products with 4-bit weights compute (tests/data/compute_dtype).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "quant/four_bit_codec.h"
#include "tasks/assemble.h"
#include "tessera/comm/communicator.h"
#include "tessera/nn/weight.h"

namespace tessera::tasks::compute_dtype {
namespace {

const std::string kData = TESSERA_TEST_DATA, kFolder = kData + "/goldens/C_quant/base_llama";

AssembleOptions packed(const std::string& compute, std::optional<at::ScalarType> mixed = {}) {
  AssembleOptions options{.model_folder = kFolder, .quantization = families::Quantization{.compute_dtype = compute}};
  options.fsdp.precision.param_dtype = mixed;
  return options;
}

at::Tensor logits(const AssembleOptions& options) {
  at::Tensor out;
  comm::run_threads(1, [&](const std::shared_ptr<comm::Communicator>& group) {
    const at::NoGradGuard no_grad;
    const auto batch = io::open_safetensors(kFolder + "/batch.safetensors");
    models::ModelInput in;
    in.input_ids = io::read_tensor(*batch, "input_ids");
    in.attention_mask = io::read_tensor(*batch, "attention_mask");
    const auto a = assemble(options, group);
    a.model->eval();
    out = (*a.model)(in).logits.to(at::kFloat);
  });
  return out;
}

/// Of tokens that are no padding.
double apart(const at::Tensor& a, const at::Tensor& b) {
  const auto mask = io::read_tensor(*io::open_safetensors(kFolder + "/batch.safetensors"), "attention_mask");
  return (a - b).abs().amax(-1).mul(mask).max().item<double>();
}

TEST(ComputeDtype, FourBitProductsOfAModelInFloat32AreTheReferences) {
  const auto expected = io::read_tensor(*io::open_safetensors(kData + "/compute_dtype/logits.safetensors"), "logits");
  const auto low = logits(packed("bfloat16")), full = logits(packed("float32"));
  EXPECT_GT(apart(full, expected), 0.04);
  EXPECT_LT(apart(low, expected), 0.02);
}

TEST(ComputeDtype, MixedPrecisionComesBeforeIt) {
  const auto low = logits(packed("bfloat16", at::kBFloat16)), full = logits(packed("float32", at::kBFloat16));
  EXPECT_TRUE(at::equal(low, full));
}

TEST(ComputeDtype, BothProductsOfAPackedWeightCompute) {
  at::manual_seed(3);
  const auto matrix =
      std::make_shared<const tensor::PackedMatrix>(tensor::pack(quant::four_bit_codec({}), at::randn({48, 64})));
  const nn::Weight plain(matrix), low(matrix, nn::PackedProduct::kOfValues, at::kBFloat16);
  const auto x = at::randn({5, 64}), g = at::randn({5, 48}), u = at::randn({5, 4}), v = at::randn({4, 48}),
             w = at::randn({4, 64});
  EXPECT_TRUE(at::equal(low.product(x), plain.product(x.to(at::kBFloat16)).to(at::kFloat)));
  EXPECT_TRUE(at::equal(low.product(x, u, v), low.product(x) + u.mm(v)));
  EXPECT_TRUE(at::equal(low.transposed_product(g), plain.transposed_product(g.to(at::kBFloat16)).to(at::kFloat)));
  EXPECT_TRUE(at::equal(low.transposed_product(g, u, w), low.transposed_product(g) + u.mm(w)));
  EXPECT_TRUE(at::equal(low.of_values().product(x), plain.product(x)));
}

}  // namespace
}  // namespace tessera::tasks::compute_dtype
