// Which layers stay dense where a model is packed while it loads.
#include "models/pack_layers.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

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

TEST(StatedSkipModules, SayWhatTransformersWouldPackOtherwise) {
  using Names = std::optional<std::vector<std::string>>;
  const auto stated = [](const std::string& folder, const Names& asked) {
    ModelConfig family;
    const auto model = build_model(std::string(TESSERA_TEST_DATA) + "/goldens/" + folder, &family);
    families::Quantization settings;
    settings.skip_modules = asked;
    return stated_skip_modules(*model, family, settings);
  };
  EXPECT_EQ(stated("B_train/base_llama", {}), std::nullopt);
  EXPECT_EQ(stated("B_train/base_llama", Names({"mlp"})), Names({"mlp"}));
  const auto of_bert = stated("A_models/bert_mlm", {});
  ASSERT_TRUE(of_bert);
  EXPECT_EQ(of_bert->back(), "cls");  // transformers would pack cls.predictions.transform.dense
  EXPECT_EQ(stated("A_models/bert_mlm", Names({"cls", "pooler"})), Names({"cls", "pooler"}));
}

}  // namespace
}  // namespace tessera::models
