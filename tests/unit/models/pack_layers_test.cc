// Which layers stay dense where a model is packed while it loads.
#include "models/pack_layers.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_folder.h"

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

TEST(LayersToPack, LeaveOutAllOfTheHeadsModule) {
  for (const auto& [type, name] : {std::pair("roberta", "RobertaForMaskedLM"), std::pair("bert", "BertForMaskedLM")}) {
    const test::TempFolder folder("pack_layers");
    std::ofstream(folder.path() + "/config.json") << nlohmann::json({{"model_type", type},
                                                                     {"architectures", {name}},
                                                                     {"vocab_size", 32},
                                                                     {"hidden_size", 8},
                                                                     {"intermediate_size", 16},
                                                                     {"num_hidden_layers", 1},
                                                                     {"num_attention_heads", 2},
                                                                     {"max_position_embeddings", 20}});
    ModelConfig family;
    const auto model = build_model(folder.path(), &family);
    const auto packed = layers_to_pack(*model, family, {});
    EXPECT_EQ(packed.size(), 6u) << type;
    EXPECT_FALSE(packed.contains("lm_head.dense"));
    const auto stated = stated_skip_modules(*model, family, {});
    ASSERT_TRUE(stated) << type;
    EXPECT_EQ(stated->back(), family.output_embedding.substr(0, family.output_embedding.find('.')));
  }
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
