// The modules that are built are those of the blueprint: names, shapes and order of the parameters.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "families/config_reader.h"
#include "families/families.h"
#include "models/check_sizes.h"
#include "models/model.h"
#include "support/temp_folder.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

Shapes described(const std::string& folder) {
  Shapes out;
  const auto config = families::parse_config(read_described_config(folder), folder + "/config.json");
  for (const auto& p : families::parameters_of(families::blueprint_of(config))) out.emplace_back(p.name, p.shape);
  return out;
}

Shapes built(const std::string& folder) {
  Shapes out;
  for (const auto& p : build_model(folder, nullptr)->named_parameters())
    out.emplace_back(p.key(), p.value().sizes().vec());
  return out;
}

void expect_equal(const json& config) {
  const test::TempFolder folder("blueprint");
  std::ofstream(folder.path() + "/config.json") << config.dump();
  const auto shapes = built(folder.path());
  EXPECT_GT(shapes.size(), 10u);
  EXPECT_EQ(described(folder.path()), shapes) << config.dump();
}

TEST(BlueprintOfAModel, EveryFamilysDefaultsAreWhatIsBuilt) {
  for (const auto& family : families::families()) expect_equal({{"model_type", family.model_type}});
}

TEST(BlueprintOfAModel, KeysThatAddOrTakeAwayModulesAreHonoured) {
  const std::vector<json> keys = {
      {{"model_type", "llama"}, {"tie_word_embeddings", true}, {"attention_bias", true}, {"mlp_bias", true}},
      {{"model_type", "gptj"}, {"tie_word_embeddings", true}},
      {{"model_type", "gpt2"}, {"tie_word_embeddings", false}, {"n_inner", 100}},
      {{"model_type", "opt"}, {"word_embed_proj_dim", 256}, {"do_layer_norm_before", false}, {"enable_bias", false}},
      {{"model_type", "opt"}, {"layer_norm_elementwise_affine", false}, {"tie_word_embeddings", false}},
      {{"model_type", "falcon"}, {"new_decoder_architecture", true}, {"num_kv_heads", 71}},
      {{"model_type", "falcon"}, {"parallel_attn", false}, {"bias", true}, {"alibi", true}, {"multi_query", false}},
      {{"model_type", "gpt_neox"}, {"attention_bias", false}, {"use_parallel_residual", false}},
      {{"model_type", "t5"}, {"feed_forward_proj", "gated-gelu"}, {"tie_word_embeddings", false}},
      {{"model_type", "t5"}, {"num_decoder_layers", 2}},
      {{"model_type", "bert"}, {"tie_word_embeddings", false}, {"position_embedding_type", "relative_key"}},
      {{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}, {"num_labels", 5}},
      {{"model_type", "roberta"}, {"architectures", {"RobertaForSequenceClassification"}}},
      {{"model_type", "xlm-roberta"}, {"tie_word_embeddings", false}},
      {{"model_type", "camembert"}, {"architectures", {"CamembertForSequenceClassification"}}},
      {{"model_type", "electra"}, {"embedding_size", 256}, {"position_embedding_type", "relative_key"}},
      {{"model_type", "electra"}, {"tie_word_embeddings", false}},
      {{"model_type", "electra"}, {"architectures", {"ElectraForSequenceClassification"}}},
      {{"model_type", "distilbert"}, {"tie_word_embeddings", false}},
      {{"model_type", "deberta"}, {"relative_attention", true}, {"pos_att_type", "c2p|p2c"}, {"type_vocab_size", 2}},
      {{"model_type", "deberta-v2"},
       {"relative_attention", true},
       {"pos_att_type", {"p2c", "c2p"}},
       {"position_biased_input", false},
       {"norm_rel_ebd", "layer_norm"},
       {"conv_kernel_size", 3},
       {"conv_groups", 2},
       {"embedding_size", 32},
       {"tie_word_embeddings", false}},
      {{"model_type", "deberta-v2"}, {"relative_attention", true}, {"share_att_key", true}, {"pos_att_type", "c2p"}},
      {{"model_type", "deberta-v2"}, {"legacy", false}},
      {{"model_type", "deberta-v2"}, {"architectures", {"DebertaV2ForSequenceClassification"}}},
      {{"model_type", "distilbert"}, {"architectures", {"DistilBertForSequenceClassification"}}},
      {{"model_type", "phi"}, {"qk_layernorm", true}},
      {{"model_type", "stablelm"}, {"qk_layernorm", true}, {"num_key_value_heads", 8}}};
  for (const auto& config : keys) expect_equal(config);
}

TEST(BlueprintOfAModel, HoldsForTheFoldersOfTheTests) {
  int folders = 0;
  for (const auto& entry : fs::recursive_directory_iterator(TESSERA_TEST_DATA)) {
    if (entry.path().filename() != "config.json" || !families::read_json(entry.path().string()).contains("model_type"))
      continue;
    ++folders;
    const auto folder = entry.path().parent_path().string();
    EXPECT_EQ(described(folder), built(folder)) << entry.path();
  }
  EXPECT_GT(folders, 20);
}

}  // namespace
}  // namespace tessera::models
