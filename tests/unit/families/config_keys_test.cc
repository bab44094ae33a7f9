// config.json's keys: none of transformers' passes unseen.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "families/families.h"
#include "families/known_keys.h"
#include "tessera/base/error.h"

namespace tessera::families {
namespace {

using nlohmann::json;

const json& all_keys() {
  static const json keys = json::parse(read_file(std::string(TESSERA_TEST_DATA) + "/config_keys/keys.json"));
  return keys;
}

json config_of(const std::string& family, const json& changes = {}) {
  json config = all_keys().at(family).at("base");
  config["model_type"] = family;
  if (!changes.is_null()) config.update(changes);
  return config;
}

/// What the program makes of the changes: "used", "refused", "unused" (and known as that) or "unknown".
std::string fate(const std::string& family, const json& changes) {
  try {
    std::string note;
    const auto changed = parse_config(config_of(family, changes), "config.json", &note);
    if (changed != parse_config(config_of(family), "config.json")) return "used";
    return note.empty() ? "unused" : "unknown";
  } catch (const ConfigError&) {
    return "refused";
  }
}

TEST(ConfigKeys, EveryFamilyIsThere) {
  for (const auto& family : families()) EXPECT_TRUE(all_keys().contains(family.model_type)) << family.model_type;
}

TEST(ConfigKeys, WhatChangesTheReferenceIsUsedOrRefused) {
  int rows = 0;
  for (const auto& [family, entry] : all_keys().items()) {
    for (const auto& row : entry.at("rows")) {
      ++rows;
      const auto got = fate(family, row.at("changes"));
      EXPECT_NE(got, "unknown") << family << " " << row;
      if (row.at("effect") == true) {
        EXPECT_NE(got, "unused") << family << " " << row;
      }
      if (row.contains("same_as") && got != "refused") {
        EXPECT_EQ(parse_config(config_of(family, row.at("changes")), "config.json"),
                  parse_config(config_of(family, row.at("same_as")), "config.json"))
            << family << " " << row;
      }
    }
  }
  EXPECT_GT(rows, 1000);
}

TEST(ConfigKeys, WhatNobodyKnowsIsNoted) {
  std::string note;
  parse_config(config_of("llama", {{"attention_bais", true}, {"use_cache", false}}), "m/config.json", &note);
  EXPECT_NE(note.find("m/config.json"), std::string::npos) << note;
  EXPECT_NE(note.find("'attention_bais'"), std::string::npos) << note;
  EXPECT_EQ(note.find("use_cache"), std::string::npos) << note;
  parse_config(config_of("llama", {{"quantization_config", {{"load_in_4bit", true}, {"bnb_4bit_quant_typ", "nf4"}}}}),
               "m/config.json", &note);
  EXPECT_NE(note.find("'quantization_config.bnb_4bit_quant_typ'"), std::string::npos) << note;
  EXPECT_EQ(note.find("load_in_4bit"), std::string::npos) << note;
  parse_config(config_of("llama"), "m/config.json", &note);
  EXPECT_EQ(note, "");
}

TEST(ConfigKeys, ValuesThatAskForAnotherModelAreRefusedByKey) {
  const auto refused = [](const std::string& family, const json& changes, const std::string& key) {
    try {
      parse_config(config_of(family, changes), "config.json");
      ADD_FAILURE() << family << " " << changes;
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.key, key) << e.what();
    }
  };
  refused("bloom", {{"slow_but_exact", true}, {"pretraining_tp", 2}}, "pretraining_tp");
  refused("llama", {{"quantization_config", {{"quant_method", "hqq"}}}}, "quantization_config");
  refused("llama", {{"quantization_config", {{"quant_method", "awq"}, {"version", "gemv"}}}}, "quantization_config");
  refused("llama", {{"quantization_config", {{"load_in_8bit", true}, {"llm_int8_threshold", -1}}}},
          "quantization_config");
  refused("gpt2", {{"pruned_heads", {{"0", {1}}}}}, "pruned_heads");
  refused("t5", {{"tie_encoder_decoder", true}}, "tie_encoder_decoder");
  refused("llama", {{"pad_token_id", -100}}, "pad_token_id");
  refused("llama", {{"rope_parameters", {{"rope_type", "spiral"}}}}, "rope_parameters");
}

DecoderConfig decoder(const std::string& family, const json& changes) {
  return std::get<DecoderConfig>(parse_config(config_of(family, changes), "config.json"));
}

TEST(Rotary, ParametersOfTransformers5AreThoseOfVersion4) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 16}};
  json newer = scaling;
  newer["rope_theta"] = 5e5;
  EXPECT_EQ(decoder("llama", {{"rope_theta", 5e5}, {"rope_scaling", scaling}}),
            decoder("llama", {{"rope_parameters", newer}}));
  EXPECT_EQ(decoder("smollm3", {{"rope_theta", 77.0}}),
            decoder("smollm3", {{"rope_parameters", {{"rope_theta", 77.0}}}}));
  EXPECT_EQ(decoder("smollm3", {}), decoder("smollm3", {{"rope_parameters", json::object()}}));
  const auto neox = decoder("gpt_neox", {{"rope_parameters", {{"rope_theta", 77.0}, {"partial_rotary_factor", 1.0}}}});
  EXPECT_EQ(neox.rotary.theta, 77.0);
  EXPECT_EQ(neox.rotary.dims, neox.head_dim);
  const json one = {{"rope_type", "default"}, {"rope_theta", 77.0}},
             other = {{"rope_type", "default"}, {"rope_theta", 5.0}};
  EXPECT_EQ(
      decoder("gemma2", {{"rope_parameters", {{"full_attention", one}, {"sliding_attention", one}}}}).rotary.theta,
      77.0);
  EXPECT_THROW(decoder("gemma2", {{"rope_parameters", {{"full_attention", one}, {"sliding_attention", other}}}}),
               ConfigError);
  EXPECT_THROW(decoder("llama", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}), ConfigError);
}

/// Which version 5 does not write, and of which version 4 reads the settings of the scaling alone.
TEST(Rotary, OfRopeScalingTheScalingCounts) {
  const json plain = {{"rope_type", "linear"}, {"factor", 2.0}};
  auto more = plain;
  more.update({{"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}});
  EXPECT_EQ(decoder("llama", {{"rope_scaling", more}}), decoder("llama", {{"rope_scaling", plain}}));
  EXPECT_EQ(decoder("llama", {{"rope_theta", 77.0}, {"rope_scaling", more}}).rotary.theta, 77.0);
}

/// Gemma 3's layers with a window have positions of their own, in both forms of the keys.
TEST(Rotary, EachTypeOfLayerMayHaveItsOwn) {
  const auto older = decoder("gemma3_text", {{"rope_theta", 77.0},
                                             {"rope_local_base_freq", 5.0},
                                             {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  EXPECT_EQ(older.rotary.theta, 77.0);
  EXPECT_EQ(older.rotary.factor, 8.0);
  ASSERT_TRUE(older.window_rotary.has_value());
  EXPECT_EQ(older.window_rotary->theta, 5.0);
  EXPECT_EQ(older.window_rotary->scaling, RopeScaling::kNone) << "rope_scaling is of full attention";
  const json full = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 77.0}},
             window = {{"rope_type", "default"}, {"rope_theta", 5.0}};
  EXPECT_EQ(older,
            decoder("gemma3_text", {{"rope_parameters", {{"full_attention", full}, {"sliding_attention", window}}}}));
  const auto some =
      decoder("gemma3_text", {{"rope_parameters", {{"full_attention", full}, {"sliding_attention", {}}}}});
  EXPECT_EQ(some.window_rotary->theta, 1e4);
  EXPECT_EQ(decoder("gemma3_text", {}).rotary.theta, 1e6);
  EXPECT_THROW(decoder("gemma3_text", {{"rope_parameters", {{"full_attention", 3}}}}), ConfigError);
}

TEST(Gemma3, EverySixthLayerSeesEverythingUnlessTheFileSaysOtherwise) {
  const auto windows = [](const json& keys) {
    auto all = keys;
    all.update({{"num_hidden_layers", 7}, {"sliding_window", 4}, {"layer_types", nullptr}});
    return decoder("gemma3_text", all).attention_window;
  };
  EXPECT_EQ(windows(json::object()), (std::vector<std::int64_t>{4, 4, 4, 4, 4, 0, 4}));
  EXPECT_EQ(windows({{"sliding_window_pattern", 2}}), (std::vector<std::int64_t>{4, 0, 4, 0, 4, 0, 4}));
}

TEST(Rotary, PositionsBesideParametersOfTransformers5Win) {
  const auto original = [](const std::string& type, const char* key) {
    json scaling = {{"rope_type", type},       {"factor", 4.0},     {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0}, {"rope_theta", 5e5}, {"original_max_position_embeddings", 16}};
    return decoder("llama", {{key, scaling}, {"original_max_position_embeddings", 8}}).rotary.original_positions;
  };
  for (const char* type : {"llama3", "yarn"}) {
    EXPECT_EQ(original(type, "rope_parameters"), 8) << type;
    EXPECT_EQ(original(type, "rope_scaling"), 16) << type;  // version 4 asks for no other place
  }
}

TEST(Rotary, ZerosOfYarnAreItsDefaults) {
  const auto yarn = [](double fast, double slow) {
    return decoder("llama", {{"rope_scaling",
                              {{"rope_type", "yarn"},
                               {"factor", 4.0},
                               {"beta_fast", fast},
                               {"beta_slow", slow},
                               {"original_max_position_embeddings", 0}}}})
        .rotary;
  };
  EXPECT_EQ(yarn(0, 0), yarn(32, 1));
  EXPECT_EQ(yarn(0, 0).original_positions, 32);
  EXPECT_NE(yarn(16, 1), yarn(32, 1));
}

TEST(T5, ANewerFileSaysWhetherItsHeadScales) {
  const auto scales = [](const std::string& family, const json& changes) {
    return std::get<T5Config>(parse_config(config_of(family, changes), "config.json")).scales_head;
  };
  EXPECT_TRUE(scales("t5", {}));
  EXPECT_FALSE(scales("t5", {{"tie_word_embeddings", false}}));
  EXPECT_FALSE(scales("t5", {{"scale_decoder_outputs", false}}));
  EXPECT_TRUE(scales("mt5", {{"tie_word_embeddings", true}}));
  EXPECT_FALSE(scales("mt5", {{"tie_word_embeddings", true}, {"transformers_version", "5.1.0"}}));
  EXPECT_TRUE(scales("umt5", {{"tie_word_embeddings", true}, {"transformers_version", "5.1.0"}}));
  EXPECT_TRUE(scales("umt5", {{"tie_word_embeddings", false}, {"transformers_version", "5.1.0"}}));
  EXPECT_FALSE(scales("umt5", {{"scale_decoder_outputs", false}, {"transformers_version", "5.24.0"}}));
}

TEST(ConfigKeys, Transformers5CountsQwen3sExpertsUnderAnotherName) {
  const auto count = [](const json& changes) { return decoder("qwen3_moe", changes).experts.count; };
  EXPECT_EQ(count({{"num_experts", 6}}), 6);
  EXPECT_EQ(count({{"num_experts", nullptr}, {"num_local_experts", 6}}), 6);
}

TEST(ConfigKeys, NegativePaddingCountsFromTheEnd) {
  EXPECT_EQ(decoder("llama", {{"pad_token_id", -1}}).padding_idx, 23);
  EXPECT_EQ(decoder("llama", {{"pad_token_id", nullptr}}).padding_idx, -1);
}

TEST(ConfigKeys, ABertWithoutPaddingHasNoRowWithoutAGradient) {
  const auto row = [](const json& changes) {
    return std::get<BertConfig>(parse_config(config_of("bert", changes), "config.json")).padding_idx;
  };
  EXPECT_EQ(row({{"pad_token_id", nullptr}}), -1);
  EXPECT_EQ(row({{"pad_token_id", 5}}), 5);
  EXPECT_EQ(row({}), 0);
}

TEST(ConfigKeys, SmolLM3sLayerTypesNeedNoSwitch) {
  const json types = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  const auto windows = [](const json& changes) { return decoder("smollm3", changes).attention_window; };
  EXPECT_EQ(windows({{"layer_types", types}, {"sliding_window", 2}}), (std::vector<std::int64_t>{2, 0, 2, 0}));
  EXPECT_EQ(windows({{"sliding_window", 2}}), (std::vector<std::int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(windows({{"sliding_window", 2}, {"use_sliding_window", true}}),
            (std::vector<std::int64_t>{0, 0, 0, 2}));  // the layer without rotary positions
}

TEST(ConfigKeys, AMistralWithLayerTypesSlidesWhereTheySay) {
  const json types = {"full_attention", "sliding_attention", "sliding_attention", "full_attention"};
  const auto windows = [](const json& changes) { return decoder("mistral", changes).attention_window; };
  EXPECT_EQ(windows({{"layer_types", types}, {"sliding_window", 2}}), (std::vector<std::int64_t>{0, 2, 2, 0}));
  EXPECT_EQ(windows({{"sliding_window", 2}}), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(windows({{"sliding_window", nullptr}}), (std::vector<std::int64_t>{0, 0, 0, 0}));
  // And writes so.
  const json ministral = {{"layer_types", types}, {"sliding_window", 2}};
  EXPECT_EQ(decoder("ministral", ministral).attention_window, (std::vector<std::int64_t>{0, 2, 2, 0}));
  EXPECT_EQ(decoder("ministral", ministral).classes.causal, "MinistralForCausalLM");
}

// transformers 5 writes layer_types, and computes by them; version 4 does not know the key.
TEST(ConfigKeys, AQwen2WithExpertsSlidesWhereLayerTypesSay) {
  const json types = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  const json slides = {{"use_sliding_window", true}, {"sliding_window", 2}};
  auto named = slides;
  named["layer_types"] = types;
  const auto windows = [](const json& changes) { return decoder("qwen2_moe", changes).attention_window; };
  EXPECT_EQ(windows(named), (std::vector<std::int64_t>{2, 0, 0, 0}));
  EXPECT_EQ(windows(slides), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(windows({{"layer_types", json(4, "full_attention")}}), (std::vector<std::int64_t>{0, 0, 0, 0}));
}

TEST(ConfigKeys, HeadsOfAFamilyThatHasNoKeyForThemAreEven) {
  const auto plain = decoder("bloom", {});
  EXPECT_EQ(decoder("bloom", {{"head_dim", 8}, {"num_key_value_heads", 1}}), plain);
  EXPECT_NE(decoder("llama", {{"head_dim", 8}}), decoder("llama", {}));
}

}  // namespace
}  // namespace tessera::families
