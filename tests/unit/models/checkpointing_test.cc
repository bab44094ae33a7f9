// Recomputed blocks of a model whose blocks share a position bias and a layout: the same masks, the same
// numbers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "models/model.h"
#include "tensor/rng.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

TEST(ActivationCheckpointing, OfT5BlocksGivesTheSameLossAndGradients) {
  const auto folder = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/t5_v1_1";
  const auto run = [&](bool recompute) {
    ModelConfig config;
    const auto model = build_model(folder, &config);
    load_weights(*model, *io::open_weights(folder));
    model->train();
    nn::set_checkpointing(*model, [&](const std::string&, const nn::HookedModule& m) {
      return recompute && m.class_name() == config.no_split_classes.front();
    });
    tensor::manual_seed(5);
    ModelInput in;
    in.input_ids = at::arange(24).view({3, 8}).remainder(20) + 2;
    in.attention_mask = at::arange(8).lt(at::tensor({8, 5, 6}).unsqueeze(1)).to(at::kLong);
    in.labels = at::arange(15).view({3, 5}).remainder(17) + 3;
    in.want_logits = false;
    std::vector<at::Tensor> results = {(*model)(in).loss};
    results[0].backward();
    for (const auto& p : model->parameters()) results.push_back(p.grad());
    results.push_back(at::scalar_tensor(static_cast<double>(tensor::random_state().position)));
    return results;
  };
  const auto kept = run(false), recomputed = run(true);
  ASSERT_EQ(kept.size(), recomputed.size());
  EXPECT_TRUE(at::equal(kept[0].detach(), recomputed[0].detach()));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].defined(), recomputed[i].defined()) << i;
    if (!kept[i].defined()) continue;
    // Gradients of what several blocks read (the encoder's output, the bias) are added in another order.
    const double scale = kept[i].detach().abs().max().item<double>();
    EXPECT_LE((kept[i].detach() - recomputed[i].detach()).abs().max().item<double>(), 2e-6 * scale) << i;
  }
}

}  // namespace
}  // namespace tessera::models
