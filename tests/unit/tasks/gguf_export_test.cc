// tessera export --gguf: what is written reads back as the model it was made of.
#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/file.h"
#include "flag_sweep.h"
#include "io/gguf.h"
#include "models/gguf_model.h"
#include "support/program.h"
#include "tasks/export.h"
#include "tasks/generate.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

const std::string kTokenizers = test::kTestData + "/tokenizers/reference/";

class GgufExports : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// A model with random weights that float16 has exactly; of 256 columns, so that K blocks fit.
  std::string make(const std::string& family, bool tied = false) {
    json config = {{"torch_dtype", "float16"}, {"initializer_range", 0.4}, {"vocab_size", 2048},
                   {"bos_token_id", 1},        {"eos_token_id", 2},        {"tie_word_embeddings", tied}};
    const json llama = {{"hidden_size", 256},       {"intermediate_size", 512}, {"num_attention_heads", 4},
                        {"num_key_value_heads", 2}, {"num_hidden_layers", 2},   {"max_position_embeddings", 128},
                        {"rms_norm_eps", 1e-5},     {"rope_theta", 5000.0}};
    if (family == "gpt2") {
      config.update({{"model_type", "gpt2"},
                     {"n_embd", 256},
                     {"n_head", 4},
                     {"n_layer", 2},
                     {"n_positions", 128},
                     {"tie_word_embeddings", true}});
    } else {
      config.update(llama);
      config["model_type"] = family == "llama3" ? "llama" : family;
      if (family == "llama3")
        config["rope_scaling"] = {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 8192}};
    }
    const std::string from = in(family + "_config"), to = in(family + (tied ? "_tied" : ""));
    std::filesystem::create_directories(from);
    std::filesystem::copy(kTokenizers + (family == "gpt2" ? "gpt2" : "chatml"), from,
                          std::filesystem::copy_options::overwrite_existing | std::filesystem::copy_options::recursive);
    write_file_atomically(from + "/config.json", config.dump());
    make_model(from, to);
    return to;
  }

  std::string exported(const std::string& model, const std::string& form, const Words& more = {}) {
    const std::string file = in(form + ".gguf");
    std::ostringstream out, err;
    Words args = {model, file, "--gguf", form, "--overwrite_output_dir"};
    args.insert(args.end(), more.begin(), more.end());
    EXPECT_EQ(export_checkpoint(args, out, err), 0);
    EXPECT_NE(out.str().find("saved in " + file), std::string::npos) << out.str();
    return file;
  }

  static std::string answered(const std::string& model) {
    std::ostringstream out, err;
    EXPECT_EQ(
        generate({"--model", model, "--prompt", "The quick brown fox, 12 34!", "--max_new_tokens", "16"}, out, err), 0);
    // Ids that the tokenizer lacks are no text in the folder; the format gives every id a name.
    static const std::regex unused("\\[PAD[0-9]+\\]");
    return std::regex_replace(out.str(), unused, "");
  }

  static void expect_weights(const std::string& file, const std::string& model, double tolerance) {
    const auto found = models::open_model_weights(file), expected = models::open_model_weights(model);
    int compared = 0;
    for (const auto& info : expected->tensors()) {
      const auto* other = found->find(info.name);
      if (!other && info.name == "lm_head.weight") continue;  // tied
      ASSERT_NE(other, nullptr) << info.name;
      const auto a = io::read_tensor(*found, info.name).to(at::kFloat),
                 b = io::read_tensor(*expected, info.name).to(at::kFloat);
      ASSERT_EQ(a.sizes(), b.sizes()) << info.name;
      const double error = (a - b).norm().item<double>() / std::max(1e-9, b.norm().item<double>());
      EXPECT_LE(error, info.shape.size() < 2 ? 0 : tolerance) << info.name;
      ++compared;
    }
    EXPECT_GT(compared, 10);
  }

  test::TempFolder folder_{"gguf_exports"};
};

TEST_F(GgufExports, InFloat16TheModelAnswersAsItsFolderDoes) {
  for (const char* family : {"llama", "llama3", "mistral", "qwen2", "gpt2"}) {
    const std::string model = make(family), file = exported(model, "f16");
    expect_weights(file, model, 0);
    EXPECT_EQ(answered(file), answered(model)) << family;
  }
  const std::string tied = make("llama", true), file = exported(tied, "f16");
  EXPECT_EQ(io::open_gguf(file)->find("output.weight"), nullptr);
  EXPECT_EQ(answered(file), answered(tied));
}

TEST_F(GgufExports, PackedFormsKeepWhatTheirBitsCanKeep) {
  for (const char* family : {"llama", "gpt2"}) {
    const std::string model = make(family);
    expect_weights(exported(model, "q8_0"), model, 0.008);
    expect_weights(exported(model, "q4_k_m"), model, 0.09);
  }
}

// llama-quantize's mixture for two layers: the second gets more bits (7 * 2 / 8 = 1), and the output.
TEST_F(GgufExports, Q4KMGivesMoreBitsWhereLlamaQuantizeDoes) {
  const auto file = io::open_gguf(exported(make("llama"), "q4_k_m"));
  const std::vector<std::pair<std::string, std::string>> types = {
      {"token_embd.weight", "Q4_K"},   {"output.weight", "Q6_K"},         {"blk.0.attn_v.weight", "Q4_K"},
      {"blk.1.attn_v.weight", "Q6_K"}, {"blk.0.ffn_down.weight", "Q4_K"}, {"blk.1.ffn_down.weight", "Q6_K"},
      {"blk.1.attn_q.weight", "Q4_K"}, {"blk.0.attn_norm.weight", "F32"}};
  for (const auto& [name, type] : types) EXPECT_EQ(file->type_of(name), type) << name;
  const auto gpt2 = io::open_gguf(exported(make("gpt2"), "q4_k_m"));
  EXPECT_EQ(gpt2->type_of("token_embd.weight"), "Q6_K") << "it is the output, too";
  EXPECT_EQ(gpt2->type_of("blk.0.attn_qkv.weight"), "Q5_K");
  EXPECT_EQ(gpt2->type_of("position_embd.weight"), "F32");
}

TEST_F(GgufExports, KeysAreTheConverters) {
  const auto file = io::open_gguf(exported(make("llama"), "q8_0"));
  const GgufHeader& h = file->header();
  EXPECT_EQ(h.text("general.architecture"), "llama");
  EXPECT_EQ(h.text("general.name"), "Llama");
  EXPECT_EQ(h.integer("general.file_type"), 7);
  EXPECT_EQ(h.integer("general.quantization_version"), 2);
  EXPECT_EQ(h.integer("llama.block_count"), 2);
  EXPECT_EQ(h.integer("llama.context_length"), 128);
  EXPECT_EQ(h.integer("llama.rope.dimension_count"), 64);
  EXPECT_EQ(h.integer("llama.attention.key_length"), 64);
  EXPECT_EQ(h.integer("llama.vocab_size"), 2048);
  EXPECT_EQ(h.text("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(h.text("tokenizer.ggml.pre"), "qwen2");
  EXPECT_EQ(h.texts("tokenizer.ggml.tokens")->size(), 2048u);
  EXPECT_EQ(h.texts("tokenizer.ggml.tokens")->back(), "[PAD2047]");
  EXPECT_EQ(h.integers("tokenizer.ggml.token_type")->back(), 5);
}

TEST_F(GgufExports, AMergedAdapterIsInTheFile) {
  const std::string model = make("llama");
  std::filesystem::create_directories(in("adapter"));
  write_file_atomically(in("adapter/adapter_config.json"), json{{"peft_type", "LORA"},
                                                                {"r", 2},
                                                                {"lora_alpha", 64},
                                                                {"base_model_name_or_path", model},
                                                                {"target_modules", {"o_proj"}}}
                                                               .dump());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const char* layer : {"0", "1"}) {
    const std::string module = std::string("base_model.model.model.layers.") + layer + ".self_attn.o_proj.";
    tensors.emplace_back(module + "lora_A.weight", at::ones({2, 256}) / 16);
    tensors.emplace_back(module + "lora_B.weight", at::ones({256, 2}) / 16);
  }
  io::write_safetensors(in("adapter/adapter_model.safetensors"), tensors);
  std::ostringstream out, err;
  ASSERT_EQ(export_checkpoint({in("adapter"), in("merged"), "--merge"}, out, err), 0);
  const std::string file = exported(in("adapter"), "f16", {"--merge"});
  expect_weights(file, in("merged"), 0);
  EXPECT_FALSE(std::filesystem::exists(file + ".merged"));
}

TEST_F(GgufExports, WhatIsNotWrittenIsRefusedByName) {
  const auto message = [&](const Words& args) -> std::string {
    std::ostringstream out, err;
    try {
      export_checkpoint(args, out, err);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  make_model(test::kDemo + "model", in("t5"));
  EXPECT_NE(message({in("t5"), in("t5.gguf"), "--gguf", "f16"}).find("llama, mistral, qwen2 and gpt2, found t5"),
            std::string::npos);
  EXPECT_NE(message({in("t5"), in("folder"), "--gguf", "f16"}).find("must end in .gguf"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(in("t5.gguf")));
}

}  // namespace
}  // namespace tessera::tasks
