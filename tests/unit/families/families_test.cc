// Descriptions of models without their code.
#include "families/families.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::families {
namespace {

using Names = std::vector<std::string>;

Names names_of(const Blueprint& root) {
  Names out;
  for (const auto& p : parameters_of(root)) out.push_back(p.name);
  return out;
}

TEST(Blueprint, ParametersOfAModuleComeBeforeThoseOfItsParts) {
  Blueprint root{.parameters = {{"bias", {3}}}};
  root.parts.push_back(list("layers", 2, [](std::int64_t i) { return linear("", 4, 5 + i, Bias::kNone); }));
  root.parts.push_back(norm("norm", 4, NormForm::kWeightAndBias));
  EXPECT_EQ(names_of(root), (Names{"bias", "layers.0.weight", "layers.1.weight", "norm.weight", "norm.bias"}));
  EXPECT_EQ(parameters_of(root)[2].shape, (std::vector<std::int64_t>{6, 4}));
  EXPECT_EQ(transposed_linear("a", 4, 5, Bias::kNone).parameters[0].shape, (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(root.find("head"), nullptr);
  EXPECT_THROW(root.at("head"), Error);
}

TEST(Families, AConfigIsDescribedByItsModelType) {
  const auto config = parse_config({{"model_type", "llama"},
                                    {"num_hidden_layers", 1},
                                    {"hidden_size", 8},
                                    {"num_attention_heads", 2},
                                    {"num_key_value_heads", 1},
                                    {"intermediate_size", 12},
                                    {"vocab_size", 16},
                                    {"tie_word_embeddings", true},
                                    {"dtype", "bfloat16"}},
                                   "config.json");
  EXPECT_EQ(stored_dtype_of(config), "BF16");
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(names_of(blueprint_of(config)),
            (Names{"model.embed_tokens.weight", layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                   layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight", layer + "mlp.gate_proj.weight",
                   layer + "mlp.up_proj.weight", layer + "mlp.down_proj.weight", layer + "input_layernorm.weight",
                   layer + "post_attention_layernorm.weight", "model.norm.weight"}));
}

TEST(Families, TheListOfLabelsSaysHowManyThereAre) {
  const auto labels = [](const nlohmann::json& changes) {
    nlohmann::json config = {{"model_type", "bert"}, {"architectures", {"BertForSequenceClassification"}}};
    config.update(changes);
    return std::get<BertConfig>(parse_config(config, "config.json")).classifier.num_labels;
  };
  const nlohmann::json three = {{"0", "a"}, {"1", "b"}, {"2", "c"}};
  EXPECT_EQ(labels({{"id2label", three}}), 3);
  EXPECT_EQ(labels({{"num_labels", 5}}), 5);
  EXPECT_EQ(labels({{"num_labels", 5}, {"id2label", three}}), 3);  // as in transformers, which warns
}

TEST(Families, TwoTypesOfOneRopeScalingAreRefused) {
  const auto parse = [](const nlohmann::json& scaling) {
    (void)parse_config({{"model_type", "llama"}, {"rope_scaling", scaling}}, "config.json");
  };
  EXPECT_NO_THROW(parse({{"type", "linear"}, {"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_THROW(parse({{"type", "linear"}, {"rope_type", "dynamic"}, {"factor", 2.0}}), ConfigError);
}

TEST(Families, GptNeoNamesTheAttentionOfEveryLayer) {
  const auto windows = [](std::int64_t layers, const nlohmann::json& types = nullptr) {
    nlohmann::json config = {{"model_type", "gpt_neo"}, {"num_layers", layers}, {"window_size", 7}};
    if (!types.is_null()) config["attention_types"] = types;
    return std::get<DecoderConfig>(parse_config(config, "config.json")).attention_window;
  };
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows(24).size(), 24u);
  EXPECT_EQ(windows(3, nlohmann::json::parse(R"([[["global", "local"], 1], [["local"], 1]])")), (Windows{0, 7, 7}));
  for (const char* wrong : {R"([[["global"], 3]])", R"([[["global"], 18446744073709551615]])", R"([[[], 9]])",
                            R"([["global", 2]])", R"([[["far"], 2]])", R"("global")"})
    EXPECT_THROW(windows(2, nlohmann::json::parse(wrong)), ConfigError) << wrong;
  EXPECT_THROW(windows(2), ConfigError);  // the default is for 24
}

TEST(Families, T5KnowsEveryActivation) {
  const auto activation = [](const std::string& projection) {
    const auto c =
        std::get<T5Config>(parse_config({{"model_type", "t5"}, {"feed_forward_proj", projection}}, "config.json"));
    return std::pair(c.activation, c.gated);
  };
  EXPECT_EQ(activation("gated-gelu"), std::pair(Activation::kGeluTanh, true));
  EXPECT_EQ(activation("gelu"), std::pair(Activation::kGelu, false));
  EXPECT_EQ(activation("leaky_relu"), std::pair(Activation::kLeakyRelu, false));
  EXPECT_EQ(activation("gated-tanh"), std::pair(Activation::kTanh, true));
  EXPECT_THROW(activation("gated-glue"), ConfigError);
}

TEST(Families, ASmallConfigOfDistilBertHasTwoNamesForItsSizes) {
  const auto parse = [](nlohmann::json keys) {
    keys["model_type"] = "distilbert";
    return std::get<BertConfig>(parse_config(keys, "config.json"));
  };
  EXPECT_EQ(parse({{"dim", 24}, {"n_heads", 4}, {"n_layers", 2}}),
            parse({{"hidden_size", 24}, {"num_attention_heads", 4}, {"num_hidden_layers", 2}}));
  EXPECT_THROW(parse({{"sinusoidal_pos_embds", true}}), ConfigError);
}

TEST(Families, DebertaReadsItsKeysAsUpstream) {
  const auto parse = [](nlohmann::json keys, const char* type = "deberta-v2") {
    keys["model_type"] = type;
    return std::get<BertConfig>(parse_config(keys, "config.json"));
  };
  const auto v3 = parse({{"pos_att_type", "p2c|c2p"},
                         {"relative_attention", true},
                         {"max_relative_positions", -1},
                         {"position_buckets", 256},
                         {"norm_rel_ebd", "layer_norm"},
                         {"share_att_key", true},
                         {"position_biased_input", false}});
  EXPECT_EQ(v3.deberta.scores, 3);
  EXPECT_EQ(v3.deberta.span(), 256);
  EXPECT_EQ(v3.deberta.max_distance, 512);
  EXPECT_TRUE(v3.deberta.shares_projections && v3.deberta.norms_positions);
  EXPECT_EQ(v3.positions, BertPositions::kNone);
  EXPECT_EQ(parse({{"pos_att_type", {"C2P", "p2p"}}}).deberta.scores, 1);  // lists are taken as they are
  EXPECT_EQ(parse({{"pos_att_type", {"c2p", "p2p"}}}, "deberta").deberta.scores, 3);
  EXPECT_EQ(parse({{"pos_att_type", "C2P | p2p"}}, "deberta").deberta.scores, 3);
  for (const nlohmann::json& refused :
       std::vector<nlohmann::json>{{{"conv_kernel_size", 4}},
                                   {{"conv_kernel_size", 3}, {"conv_groups", 7}},
                                   {{"attention_head_size", 32}},
                                   {{"pooler_hidden_size", 8}},
                                   {{"position_buckets", 1}},
                                   {{"position_buckets", 8}, {"max_relative_positions", 5}},
                                   {{"legacy", false}, {"embedding_size", 8}}})
    EXPECT_THROW(parse(refused), ConfigError) << refused;
  EXPECT_THROW(parse({{"talking_head", true}}, "deberta"), ConfigError);
}

TEST(Families, VocabulariesOfTheRobertasDiffer) {
  const auto vocabulary = [](const char* type) {
    return std::get<BertConfig>(parse_config({{"model_type", type}}, "config.json")).vocab_size;
  };
  EXPECT_EQ(vocabulary("roberta"), 50265);
  EXPECT_EQ(vocabulary("xlm-roberta"), 30522);  // transformers' defaults
  EXPECT_EQ(vocabulary("camembert"), 30522);
}

TEST(Families, ABertWithoutAHeadIsKnown) {
  for (const auto& [type, architecture] :
       {std::pair("bert", "BertModel"), std::pair("roberta", "RobertaModel"),
        std::pair("xlm-roberta", "XLMRobertaModel"), std::pair("camembert", "CamembertModel"),
        std::pair("electra", "ElectraForPreTraining"), std::pair("deberta-v2", "DebertaV2Model"),
        std::pair("deberta", "DebertaModel"), std::pair("distilbert", "DistilBertModel")}) {
    std::string note;
    const nlohmann::json config = {
        {"model_type", type}, {"architectures", {architecture}}, {"_model_name_or_path", "base"}};
    EXPECT_NO_THROW(parse_config(config, "config.json", &note)) << architecture;
    EXPECT_EQ(note, "");
  }
  const nlohmann::json other = {{"model_type", "bert"}, {"architectures", {"BertForTokenClassification"}}};
  EXPECT_THROW(parse_config(other, "config.json"), ConfigError);
}

TEST(ReadJson, SaysWhatWasExpectedOfAFileThatIsMissing) {
  const auto said = [](const std::string& file) -> std::string {
    try {
      (void)read_json(file);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "nothing";
  };
  EXPECT_NE(said("/nowhere/config.json").find("expected the folder of a Hugging Face model"), std::string::npos);
  EXPECT_NE(said("/nowhere/adapter_config.json").find("expected the folder of an adapter (PEFT)"), std::string::npos);
  EXPECT_EQ(said("/nowhere/my.json").find("expected"), std::string::npos) << "of --peft_config";
}

}  // namespace
}  // namespace tessera::families
