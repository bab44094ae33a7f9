#include "models/gguf_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "families/families.h"
#include "io/gguf_writer.h"
#include "models/check_sizes.h"
#include "models/gguf_export.h"
#include "models/gguf_layout.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

using nlohmann::json;

const char* const kFamilies[] = {"llama",
                                 "llama3",
                                 "mistral",
                                 "mixtral",
                                 "qwen2",
                                 "qwen3",
                                 "qwen3moe",
                                 "gemma",
                                 "gemma2",
                                 "gemma3",
                                 "granite",
                                 "smollm3",
                                 "olmo2",
                                 "starcoder2",
                                 "phi3",
                                 "phi3_long",
                                 "gpt2",
                                 "gptneox",
                                 "bloom",
                                 "falcon",
                                 "falcon_two_norms",
                                 "t5",
                                 "t5_gated",
                                 "phi2",
                                 "stablelm",
                                 "stablelm_parallel",
                                 "olmo",
                                 "olmoe",
                                 "chatglm",
                                 "glm4",
                                 "starcoder",
                                 "bert"};

std::string data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/gguf/" + name;
}

/// config.json's keys of the model that the file was made from: the safetensors header's metadata.
json original_config(const std::string& family) {
  const auto bytes = read_file(data(family + ".safetensors"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return json::parse(json::parse(bytes.substr(8, length))["__metadata__"]["config"].get<std::string>());
}

TEST(GgufModel, GivesTheOriginalWeightsUnderTheirNames) {
  for (const std::string family : kFamilies) {
    const auto weights = open_model_weights(data(family + ".gguf"));
    const auto original = io::open_safetensors(data(family + ".safetensors"));
    std::size_t compared = 0;
    for (const auto& info : original->tensors()) {
      if (info.name == "logits") continue;
      ASSERT_TRUE(weights->find(info.name)) << family << ' ' << info.name;
      const auto got = io::read_tensor(*weights, info.name), want = io::read_tensor(*original, info.name);
      ASSERT_EQ(got.sizes(), want.sizes()) << family << ' ' << info.name;
      EXPECT_TRUE(at::allclose(got.to(at::kFloat), want.to(at::kFloat), 1e-3, 1e-3)) << family << ' ' << info.name;
      const bool shifted = family.starts_with("gemma") && info.name.ends_with("norm.weight");
      EXPECT_TRUE(shifted || at::equal(got.to(at::kFloat), want.to(at::kFloat))) << family << ' ' << info.name;
      ++compared;
    }
    EXPECT_EQ(compared, weights->tensors().size()) << family;
  }
}

TEST(GgufModel, ReadsAnyRangeOfARearrangedTensor) {
  for (const std::string family : kFamilies) {
    const auto weights = open_model_weights(data(family + ".gguf"));
    for (const auto& info : weights->tensors()) {
      const auto whole = io::read_tensor(*weights, info.name).view(-1).to(at::kFloat);
      for (std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, info.numel() / 3, info.numel() - 1}) {
        const auto count = std::min<std::int64_t>(37, info.numel() - begin);
        const auto part = at::empty({count}, at::kFloat);
        weights->read(info.name, begin, part);
        EXPECT_TRUE(at::equal(part, whole.narrow(0, begin, count))) << family << ' ' << info.name << ' ' << begin;
      }
      EXPECT_THROW(weights->read(info.name, info.numel(), at::empty({1})), DataError);
    }
  }
}

TEST(GgufModel, GivesTheOriginalConfiguration) {
  for (const std::string family : kFamilies) {
    auto got = read_model_config(data(family + ".gguf")), want = original_config(family);
    if (family == "mistral") want["model_type"] = "llama";  // the file does not say
    for (json* config : {&got, &want})                      // under two names
      if (config->contains("rope_scaling") && (*config)["rope_scaling"].is_object()) {
        json& scaling = (*config)["rope_scaling"];
        if (scaling.contains("type")) scaling["rope_type"] = scaling["type"];
        scaling.erase("type");
      }
    EXPECT_EQ(got["model_type"], want["model_type"]);
    for (const auto& [key, value] : got.items()) {
      const bool of_file = key.ends_with("_token_id") || key == "torch_dtype" || key == "n_ctx" || key == "n_inner" ||
                           key == "head_dim" || key == "ffn_hidden_size";
      const bool has_no_effect = key == "multi_query" && got.value("new_decoder_architecture", false);
      if (of_file || has_no_effect || !want.contains(key) || want[key].is_null()) continue;
      if (value.is_number_float())
        EXPECT_NEAR(value.get<double>() / want[key].get<double>(), 1, 1e-6) << family << ' ' << key;
      else
        EXPECT_EQ(value, want[key]) << family << ' ' << key;
    }
    if (family == "falcon" || family == "bloom" || family == "gpt2" || family == "starcoder")
      continue;  // other names for some keys
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                            "intermediate_size", "vocab_size", "num_local_experts"}) {
      EXPECT_EQ(got.contains(key), want.contains(key)) << family << ' ' << key;
    }
  }
}

// GLM's file leaves out the size of a head, for which config.json has another default.
TEST(GgufModel, SaysTheSizeOfAHeadOfGlm) {
  EXPECT_EQ(read_model_config(data("chatglm.gguf"))["head_dim"], 4);
}

TEST(GgufModel, IsFoundInAFolderWithoutConfiguration) {
  namespace fs = std::filesystem;
  const auto folder = fs::path(testing::TempDir()) / "gguf_model_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_EQ(gguf_file_of(folder.string()), std::nullopt);
  fs::copy(data("llama.gguf"), folder / "a.gguf");
  EXPECT_EQ(gguf_file_of(folder.string()), (folder / "a.gguf").string());
  EXPECT_EQ(read_model_config(folder.string())["model_type"], "llama");
  EXPECT_TRUE(open_model_weights(folder.string())->find("model.norm.weight"));
  fs::copy(data("llama.gguf"), folder / "b.gguf");
  EXPECT_THROW(gguf_file_of(folder.string()), DataError);
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(gguf_file_of(folder.string()), std::nullopt);
}

/// The file of a family, its values as float32, with more keys and tensors, and one key less.
std::string with(const std::string& family, const io::GgufMetadata& keys, const std::vector<std::string>& vectors = {},
                 const std::string& left_out = "") {
  const auto from = io::open_gguf(data(family + ".gguf"));
  io::GgufMetadata metadata;
  for (const auto& [key, value] : from->header().metadata) {
    const bool is_given = std::any_of(keys.begin(), keys.end(), [&](const auto& item) { return item.first == key; });
    if (is_given || key == left_out) continue;
    if (const auto* text = std::get_if<std::string>(&value)) metadata.emplace_back(key, *text);
    if (const auto* number = std::get_if<std::int64_t>(&value))
      metadata.emplace_back(key, static_cast<std::uint32_t>(*number));
    if (const auto* number = std::get_if<double>(&value)) metadata.emplace_back(key, static_cast<float>(*number));
  }
  metadata.insert(metadata.end(), keys.begin(), keys.end());
  std::vector<io::GgufTensorPlan> plans;
  for (const auto& info : from->tensors()) plans.push_back({info.name, info.shape});
  for (const auto& name : vectors) plans.push_back({name, {4}});
  const auto path = (std::filesystem::path(testing::TempDir()) / "gguf_with.gguf").string();
  io::GgufWriter writer(path, metadata, plans);
  for (const auto& info : from->tensors())
    writer.write(io::read_tensor(*from, info.name).to(at::kFloat).contiguous().const_data_ptr<float>());
  const std::vector<float> ones(4, 1.0F);
  for (std::size_t i = 0; i < vectors.size(); ++i) writer.write(ones.data());
  writer.commit();
  return path;
}

std::string refusal_of(const std::string& file) {
  try {
    read_model_config(file);
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

TEST(GgufModel, AValueOfAnyTypeIsReadOrAnError) {
  const io::GgufItem values[] = {std::string("4"), -1, 1e30F, true, std::vector<std::int32_t>{4, 4}};
  std::size_t refused = 0;
  for (const std::string family : kFamilies) {
    const auto file = io::open_gguf(data(family + ".gguf"));
    const auto architecture = file->header().text("general.architecture").value();
    std::set<std::string> keys;
    for (const auto& [key, value] : file->header().metadata) keys.insert(key);
    for (const char* other : {"attention.sliding_window", "attention.head_count_kv", "attention.key_length",
                              "rope.freq_base", "rope.dimension_count", "rope.scaling.factor", "rope.scaling.type"})
      keys.insert(architecture + "." + other);
    for (const auto& key : keys)
      for (const auto& value : values) try {
          const auto changed = with(family, {{key, value}});
          families::parse_config(read_model_config(changed), "config.json");
        } catch (const Error&) {  // of other kinds: the test ends
          ++refused;
        }
  }
  EXPECT_GT(refused, 1000);
}

TEST(GgufModel, ReadsHowAHeadTurnsAndHowItsRopeIsScaled) {
  EXPECT_EQ(read_model_config(with("phi3", {}))["partial_rotary_factor"], json());
  const auto half = read_model_config(data("phi3.gguf"))["hidden_size"].get<std::uint32_t>() /
                    read_model_config(data("phi3.gguf"))["num_attention_heads"].get<std::uint32_t>() / 2;
  EXPECT_EQ(read_model_config(with("phi3", {{"phi3.rope.dimension_count", half}}))["partial_rotary_factor"], 0.5);
  EXPECT_EQ(read_model_config(with("llama", {{"llama.rope.scaling.factor", 2.0F}}))["rope_scaling"]["type"], "linear");
  EXPECT_EQ(read_model_config(with("llama", {{"llama.rope.scale_linear", 4.0F}}))["rope_scaling"]["factor"], 4);
  EXPECT_FALSE(read_model_config(with("llama", {{"llama.rope.scaling.factor", 1.0F}})).contains("rope_scaling"));
  const auto yarn = read_model_config(with("qwen2", {{"qwen2.rope.scaling.type", std::string("yarn")},
                                                     {"qwen2.rope.scaling.factor", 4.0F},
                                                     {"qwen2.rope.scaling.yarn_beta_fast", 16.0F},
                                                     {"qwen2.rope.scaling.yarn_beta_slow", 2.0F}}))["rope_scaling"];
  EXPECT_EQ(yarn["beta_fast"], 16);
  EXPECT_EQ(yarn["beta_slow"], 2);
  // config.json of Mixtral has another default than readers of GGUF files.
  EXPECT_EQ(read_model_config(with("mixtral", {}, {}, "llama.rope.freq_base"))["rope_theta"], 10000.0);
  EXPECT_NE(read_model_config(with("mixtral", {{"llama.rope.freq_base", 3e4F}}))["rope_theta"], 10000.0);
  EXPECT_EQ(read_model_config(with("smollm3", {}, {}, "smollm3.rope.freq_base"))["rope_theta"], 10000.0);
  EXPECT_EQ(read_model_config(with("gemma3", {}, {}, "gemma3.rope.freq_base"))["rope_theta"], 10000.0);
  EXPECT_EQ(read_model_config(with("qwen2", {}, {}, "qwen2.attention.head_count_kv"))["num_key_value_heads"], 4);
  // transformers takes 0 for a window that hides every token.
  EXPECT_FALSE(read_model_config(with("phi3", {{"phi3.attention.sliding_window", 0U}})).contains("sliding_window"));
  EXPECT_FALSE(read_model_config(with("llama", {{"llama.attention.sliding_window", 0U}})).contains("sliding_window"));
  EXPECT_EQ(read_model_config(with("phi3", {{"phi3.attention.sliding_window", 8U}}))["sliding_window"], 8);
  const auto biased = read_model_config(with("llama", {}, {"blk.0.attn_q.bias", "blk.0.ffn_up.bias"}));
  EXPECT_EQ(biased["attention_bias"], true);
  EXPECT_EQ(biased["mlp_bias"], true);
}

// Left out, they would give another model without a word.
TEST(GgufModel, RefusesWhatChangesTheNumbersAndIsNotKnown) {
  const auto of_llama = [](const std::string& key, io::GgufItem value) {
    return refusal_of(with("llama", {{"llama." + key, std::move(value)}}));
  };
  EXPECT_NE(of_llama("attention.scale", 0.5F).find("'llama.attention.scale' is 0.5"), std::string::npos);
  EXPECT_NE(of_llama("logit_scale", 4.0F).find("'llama.logit_scale' is 4"), std::string::npos);
  EXPECT_EQ(of_llama("logit_scale", 1.0F), "");
  EXPECT_NE(of_llama("rope.scaling.type", std::string("longrope")).find("is 'longrope'"), std::string::npos);
  EXPECT_NE(of_llama("rope.scaling.yarn_log_multiplier", 0.1F).find("yarn_log_multiplier"), std::string::npos);
  EXPECT_NE(refusal_of(with("llama", {{"split.count", 2U}})).find("'split.count' is 2"), std::string::npos);
  EXPECT_EQ(refusal_of(with("llama", {{"split.count", 1U}})), "");
  EXPECT_NE(of_llama("expert_gating_func", 2U).find("'llama.expert_gating_func' is 2"), std::string::npos);
  EXPECT_EQ(of_llama("expert_gating_func", 1U), "");
  EXPECT_NE(of_llama("rope.scaling.attn_factor", 1.25F).find("'llama.rope.scaling.attn_factor' is 1.25"),
            std::string::npos);
  EXPECT_NE(of_llama("attention.causal", false).find("'llama.attention.causal' is false"), std::string::npos);
  EXPECT_EQ(of_llama("attention.causal", true), "");
  EXPECT_NE(refusal_of(with("olmo2", {{"olmo2.attention.sliding_window", 8U}})).find("OLMo 3"), std::string::npos);
  const auto of_pattern = [](const std::string& family, io::GgufItem value) {
    return refusal_of(with(family, {{family + ".attention.sliding_window_pattern", std::move(value)}}));
  };
  EXPECT_NE(of_pattern("gemma2", 3U).find("'gemma2.attention.sliding_window_pattern' is 3"), std::string::npos);
  EXPECT_EQ(of_pattern("gemma2", 2U), "");
  EXPECT_EQ(of_pattern("gemma3", 6U), "");
  EXPECT_EQ(of_pattern("gemma3", std::vector<std::int32_t>{1, 1, 1, 1, 1, 0, 1}), "");
  EXPECT_NE(of_pattern("gemma3", std::vector<std::int32_t>{1, 0, 1, 1, 1, 0, 1}).find("every 6. layer"),
            std::string::npos);
  EXPECT_NE(refusal_of(with("llama", {}, {"rope_factors_long.weight"})).find("rope_factors_long"), std::string::npos);
  EXPECT_NE(refusal_of(with("qwen2", {{"qwen2.rope.dimension_count", std::uint32_t{2}}})).find("2 of a head's"),
            std::string::npos);
  EXPECT_NE(refusal_of(with("qwen3", {{"qwen3.attention.value_length", std::uint32_t{2}}})).find("values of 2"),
            std::string::npos);
}

TEST(GgufModel, NamesUnknownArchitecturesAndTensors) {
  const auto path = (std::filesystem::path(testing::TempDir()) / "gguf_unknown.gguf").string();
  const auto patched = [&](const std::string& from, const std::string& to) {
    auto bytes = read_file(data("qwen2.gguf"));
    for (auto at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1))
      bytes.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  };
  try {
    read_model_config(patched("qwen2", "qwen9"));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("architecture 'qwen9' is not known (did you mean 'qwen"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("falcon"), std::string::npos) << e.what();
  }
  try {
    read_model_config(patched("qwen2", "qwen\xFF"));
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("is not UTF-8 from byte 4 on"), std::string::npos) << e.what();
  }
  try {
    open_model_weights(patched("attn_norm", "attn_nerm"));
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("'blk.0.attn_nerm.weight': not a tensor of architecture 'qwen2'"),
              std::string::npos)
        << e.what();
  }
}

TEST(GgufModel, ATensorThatTheModelHasNoPlaceForIsAnError) {
  for (const auto& [tensor, name] :
       {std::pair("output.bias", "lm_head.bias"), {"output_norm.bias", "model.norm.bias"}}) {
    const auto file = with("llama", {}, {tensor});
    try {
      check_sizes(file, *open_model_weights(file));
      FAIL() << tensor;
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find(fmt::format("tensor '{}' [4] (its name in a Hugging Face folder) is not one "
                                                       "of the model",
                                                       name)),
                std::string::npos)
          << e.what();
    }
  }
  const auto file = with("llama", {}, {"blk.0.attn_rot_embd.weight"});  // what every reader makes itself
  EXPECT_NO_THROW(check_sizes(file, *open_model_weights(file)));
}

/// A file of one tensor, of a model with experts, read.
std::shared_ptr<io::TensorSource> of_experts(const std::string& tensor, const std::vector<std::int64_t>& shape) {
  const auto path = (std::filesystem::path(testing::TempDir()) / "gguf_experts.gguf").string();
  const io::GgufMetadata metadata = {{"general.architecture", std::string("llama")},
                                     {"llama.expert_count", std::uint32_t{2}}};
  const std::vector<io::GgufTensorPlan> plans = {{tensor, shape}};
  io::GgufWriter writer(path, metadata, plans);
  writer.write(nullptr);
  writer.commit();
  return open_model_weights(path);
}

TEST(GgufModel, WhatFollowsTheNameOfExpertsIsTakenAsItIs) {
  const auto source = of_experts("blk.0.ffn_up_exps.a{b", {2, 0, 4});
  EXPECT_NE(source->find("model.layers.0.block_sparse_moe.experts.1.w3.a{b"), nullptr);
}

// No tensor of no values may cost memory or time by its shape.
TEST(GgufModel, ANumberOfExpertsIsBounded) {
  try {
    of_experts("blk.0.ffn_up_exps.weight", {std::int64_t{1} << 40, 0, 4});
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(
        std::string(e.what()).find("'blk.0.ffn_up_exps.weight': expected [experts, rows, columns], with at most 65536"),
        std::string::npos)
        << e.what();
  }
}

// The files are the converter's own: keys, names, shapes, types and values.
TEST(GgufModel, IsWrittenAsTheCommunitysConverterWritesIt) {
  std::vector<std::string> families(std::begin(kFamilies), std::end(kFamilies));
  families.emplace_back("roberta");  // with a classifier; it is read as a BERT
  for (const std::string& family : families) {
    const auto expected = io::open_gguf(data(family + ".gguf"));
    const auto config = original_config(family);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    const auto stored = io::open_safetensors(data(family + ".safetensors"));
    for (const auto& info : stored->tensors())
      if (info.name != "logits") tensors.emplace_back(info.name, io::read_tensor(*stored, info.name));
    const auto weights = io::memory_source(tensors);
    const auto planned = plan_gguf(families::parse_config(config, family), config, *weights, GgufForm::kF16);

    std::map<std::string, json> keys, expected_keys;
    for (const auto& [key, value] : planned.metadata)
      keys[key] = std::visit([](const auto& v) { return json(v); }, value);
    for (const auto& [key, value] : expected->header().metadata)
      if (key.starts_with(planned.architecture + "."))
        expected_keys[key] = std::visit([](const auto& v) { return json(v); }, value);
    EXPECT_EQ(json(keys).dump(1), json(expected_keys).dump(1)) << family;
    EXPECT_EQ(planned.architecture, expected->header().text("general.architecture")) << family;

    EXPECT_EQ(planned.tensors.size(), expected->tensors().size()) << family;
    for (const ExportedTensor& tensor : planned.tensors) {
      const std::string& name = tensor.plan.name;
      const auto* info = expected->find(name);
      ASSERT_NE(info, nullptr) << family << ' ' << name;
      EXPECT_EQ(tensor.plan.shape, info->shape) << family << ' ' << name;
      EXPECT_EQ(tensor.plan.type == io::kGgufF32 ? "F32" : "F16", expected->type_of(name)) << family << ' ' << name;
      auto values = values_for_gguf(tensor, *weights);
      if (tensor.plan.type == io::kGgufF16) values = values.to(at::kHalf);
      const auto found = io::read_tensor(*expected, name).to(at::kFloat);
      const bool is_computed = name == "rope_freqs.weight";  // in float32 there
      EXPECT_TRUE(is_computed ? at::allclose(values, found, 1e-6, 0) : at::equal(values.to(at::kFloat), found))
          << family << ' ' << name;
    }
  }
}

TEST(GgufLayout, RowMapsAreInversesOfTheConversion) {
  // rows h*size + half*.. of [heads, 2, size/2] lie as [heads, size/2, 2]
  const auto rotary = moved_rows(GgufArrangement::kRotaryQuery, 8, {2, 2});
  const std::int64_t want[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(rotary(r), want[r]);
  // two key/value heads of two queries each, one row a head: q0 q1 k0 v0 q2 q3 k1 v1 from q0 q1 q2 q3 k0 k1 v0 v1
  const auto grouped = moved_rows(GgufArrangement::kGrouped, 8, {4, 2});
  const std::int64_t falcon[] = {0, 1, 4, 6, 2, 3, 5, 7};
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(grouped(r), falcon[r]);
}

}  // namespace
}  // namespace tessera::models
