// Which layers stay dense where a model is packed while it loads.
#include "models/pack_layers.h"

#include <gtest/gtest.h>

namespace tessera::models {
namespace {

TEST(LayersToPack, AreSkippedByTransformersRule) {
  ModelConfig family;
  const auto model = build_model(std::string(TESSERA_TEST_DATA) + "/goldens/B_train/base_llama", &family);
  const auto packed = [&](const std::string& skipped, const std::string& layer) {
    families::Quantization settings;
    settings.skip_modules = std::vector{skipped};
    return layers_to_pack(*model, family, settings).contains("model.layers.0." + layer);
  };
  EXPECT_FALSE(packed("up_proj", "mlp.up_proj"));
  EXPECT_FALSE(packed("model.layers.0.mlp.up_proj", "mlp.up_proj"));
  EXPECT_FALSE(packed("mlp", "mlp.up_proj"));
  EXPECT_FALSE(packed("attn", "self_attn.q_proj"));   // "attn." stands in the name
  EXPECT_TRUE(packed("mlp.up_proj", "mlp.up_proj"));  // neither its name, nor the whole one, nor a part before a dot
  EXPECT_TRUE(packed("up", "mlp.up_proj"));
}

}  // namespace
}  // namespace tessera::models
