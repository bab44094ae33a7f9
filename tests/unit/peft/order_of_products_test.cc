// A method computes with its tensors in the cheapest order, by pieces, and makes what it needs again in backward:
// results and gradients are those of the product with the merged weight, which libtorch differentiates.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "base/factor_order.h"
#include "peft/adapter_config.h"
#include "peft/methods/tensor_method.h"
#include "support/compare.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

/// A method that is not listed has its own defaults, and takes part all the same.
const std::map<std::string, std::vector<json>> kSettings = {
    {"LOHA", {{{"r", 2}}, {{"r", 5}}}},
    {"LOKR", {{{"r", 2}}, {{"r", 40}}}},
    {"VERA", {{{"r", 7}}}},
    {"VBLORA", {{{"r", 2}, {"num_vectors", 12}, {"vector_length", 4}, {"init_vector_bank_bound", 0.3}}}},
    {"RANDLORA", {{{"r", 6}, {"randlora_alpha", 12}}}},
    {"FOURIERFT", {{{"n_frequency", 300}}}},
    {"MISS", {{{"r", 4}}, {{"r", 4}, {"init_weights", "bat"}}}},
    {"HRA", {{{"r", 4}}, {{"r", 3}, {"apply_GS", true}}}},
    {"OFT",
     {{{"oft_block_size", 4}}, {{"oft_block_size", 8}, {"use_cayley_neumann", false}}, {{"oft_block_size", 12}}}},
    {"BOFT",
     {{{"boft_block_size", 4}}, {{"boft_block_size", 2}, {"boft_n_butterfly_factor", 2}}, {{"boft_block_size", 8}}}},
    {"DELORA", {{{"r", 3}}}},
    {"GRALORA", {{{"r", 4}}, {{"r", 8}, {"gralora_k", 4}, {"hybrid_r", 3}}, {{"r", 2}, {"gralora_k", 1}}}},
    {"C3A", {{{"block_size", 8}}, {{"block_size", 1}}}},
    {"HIRA", {{{"r", 5}}}},
    {"PSOFT",
     {{{"r", 5}},
      {{"r", 6}, {"psoft_orth", false}, {"psoft_mag_b", false}},
      {{"r", 4}, {"use_cayley_neumann", true}, {"cayley_neumann_eps", 0.3}, {"num_cayley_neumann_terms", 3}}}},
    {"ROAD",
     {{{"group_size", 8}}, {{"variant", "road_2"}, {"group_size", 24}}, {{"variant", "road_4"}, {"group_size", 2}}}},
    {"SHIRA", {{{"r", 3}}, {{"r", 12}, {"random_seed", 5}}}},
    {"WAVEFT",
     {{{"n_frequency", 300}},
      {{"n_frequency", 300}, {"wavelet_family", "sym4"}},
      {{"n_frequency", 70}, {"use_idwt", false}}}}};

struct Computed {
  at::Tensor y;
  std::vector<at::Tensor> gradients;  // of x and of what trains
};

Computed differentiated(const at::Tensor& y, std::vector<at::Tensor> of) {
  const auto weights = torch::arange(y.numel(), at::kFloat).mul(0.37).sin().view(y.sizes());
  return {y.detach(), torch::autograd::grad({(y * weights).sum()}, of, {}, std::nullopt, false, true)};
}

/// A layer with an adapter's tensors, all of random numbers.
struct Adapted {
  nn::Linear layer;
  at::Tensor x;
  Tensors t;
  std::vector<at::Tensor> of = {};  // x and what trains

  Adapted(const TensorMethod& method, const LayerSizes& sizes, std::int64_t tokens) : layer(sizes.in, sizes.out, true) {
    torch::manual_seed(3);
    layer.weight.set_data(torch::randn({sizes.out, sizes.in}) / 8);
    layer.bias.set_data(torch::randn({sizes.out}));
    layer.weight.set_requires_grad(false);
    layer.bias.set_requires_grad(false);
    layer.train();
    auto tensors = method.added(sizes);
    const auto shared = method.shared({sizes});
    tensors.insert(tensors.end(), shared.begin(), shared.end());
    x = torch::randn({2, tokens / 2, sizes.in}).set_requires_grad(true);
    of.push_back(x);
    for (const auto& tensor : tensors) {
      t.push_back((torch::randn(tensor.sizes) / 4).set_requires_grad(tensor.trains));
      if (tensor.trains) of.push_back(t.back());
    }
  }
};

Computed computed_by(const TensorMethod& method, const LayerSizes& sizes, std::int64_t tokens) {
  const Adapted adapted(method, sizes, tokens);
  return differentiated(method.output(adapted.layer, sizes, adapted.x, adapted.t), adapted.of);
}

void expect_same_as_merged(const TensorMethod& method, const LayerSizes& sizes, std::int64_t tokens,
                           const std::string& what) {
  const auto computed = computed_by(method, sizes, tokens);
  const Adapted same(method, sizes, tokens);
  const auto& [layer, x, t, of] = same;
  const auto merged = differentiated(
      at::linear(x, method.merged_weight(sizes, layer.weight, t), method.merged_bias(layer.bias, t)), of);
  test::expect_close(computed.y, merged.y, 2e-5, what);
  for (std::size_t i = 0; i < of.size(); ++i) {
    const auto name = what + ", gradient " + std::to_string(i);
    ASSERT_EQ(computed.gradients[i].defined(), merged.gradients[i].defined()) << name;
    if (!merged.gradients[i].defined()) continue;
    EXPECT_GT(merged.gradients[i].abs().max().item<double>(), 0) << name;
    test::expect_close(computed.gradients[i], merged.gradients[i], 2e-5, name);
  }
}

TEST(OrderOfProducts, EveryMethodComputesWhatItsMergedWeightDoes) {
  int seen = 0;
  for (const auto& type : method_types()) {
    const auto found = kSettings.find(type);
    for (auto keys : found == kSettings.end() ? std::vector<json>{json::object()} : found->second) {
      keys["peft_type"] = type;
      const auto method = read_peft_keys(keys, "the test");
      const auto* of_tensors = dynamic_cast<const TensorMethod*>(method.get());
      if (!of_tensors || type == "ADALORA") continue;      // whose penalty is a model's
      if (type == "PVERA" || type == "UNILORA") continue;  // draws in training; knows its model's layers only
      ++seen;
      for (const auto& [in, out] : {std::pair{48, 24}, std::pair{24, 48}, std::pair{24, 24}})
        for (const std::int64_t tokens : {6, 150})
          expect_same_as_merged(*of_tensors, {"layer", in, out}, tokens,
                                keys.dump() + ", " + std::to_string(in) + " to " + std::to_string(out) + ", " +
                                    std::to_string(tokens) + " tokens");
    }
  }
  EXPECT_GE(seen, 10);
}

TEST(OrderOfProducts, LengthsThatNoFourierTransformTakesAreComputedByTheMatrix) {
  for (const json& keys :
       {json{{"peft_type", "FOURIERFT"}, {"n_frequency", 50}}, json{{"peft_type", "C3A"}, {"block_size", 67}}}) {
    const auto method = read_peft_keys(keys, "the test");
    expect_same_as_merged(dynamic_cast<const TensorMethod&>(*method), {"layer", 67, 134}, 6, keys.dump());
  }
}

TEST(OrderOfProducts, ThreadsDoNotChangeBits) {
  const auto threads = at::get_num_threads();
  for (const json& keys :
       {json{{"peft_type", "FOURIERFT"}, {"n_frequency", 300}}, json{{"peft_type", "C3A"}, {"block_size", 8}},
        json{{"peft_type", "SHIRA"}, {"r", 8}}, json{{"peft_type", "WAVEFT"}, {"n_frequency", 300}}}) {
    const auto method = read_peft_keys(keys, "the test");
    std::vector<Computed> computed;
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      computed.push_back(computed_by(dynamic_cast<const TensorMethod&>(*method), {"layer", 48, 96}, 1000));
    }
    EXPECT_TRUE(at::equal(computed[0].y, computed[1].y)) << keys;
    for (std::size_t i = 0; i < computed[0].gradients.size(); ++i)
      EXPECT_TRUE(at::equal(computed[0].gradients[i], computed[1].gradients[i])) << keys << ", gradient " << i;
  }
  at::set_num_threads(threads);
}

TEST(OrderOfProducts, FactorsAreLessWorkForFewTokensOrRanks) {
  EXPECT_TRUE(factors_are_less_work({512, 768, 768}, 64));
  EXPECT_TRUE(factors_are_less_work({512, 768, 2048}, 768));
  EXPECT_FALSE(factors_are_less_work({8192, 768, 2048}, 768));
  EXPECT_TRUE(factors_are_less_work({8192, 768, 2048}, 64));
}

}  // namespace
}  // namespace tessera::peft
