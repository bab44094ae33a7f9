// tessera export --gguf: what is written reads back as the model it was made of.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/normal.h>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <tuple>
#include <vector>

#include "base/file.h"
#include "flag_sweep.h"
#include "io/gguf.h"
#include "models/gguf_model.h"
#include "support/program.h"
#include "tasks/export.h"
#include "tasks/generate.h"
#include "tasks/merge.h"
#include "tasks/opened_model.h"
#include "tasks/quantize.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/packed_weight.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

const std::string kTokenizers = test::kTestData + "/tokenizers/reference/";
constexpr int kSizeOfT5 = 32128;  // of the table beside its own tokenizer

class GgufExports : public ::testing::Test {
 protected:
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// A model with random weights that float16 has exactly; of 256 columns, so that K blocks fit. more: of its
  /// config.json.
  std::string make(const std::string& family, bool tied = false, const json& more = json::object()) {
    json config = {{"torch_dtype", "float16"}, {"initializer_range", 0.4}, {"vocab_size", 2048},
                   {"bos_token_id", 1},        {"eos_token_id", 2},        {"tie_word_embeddings", tied}};
    const json llama = {{"hidden_size", 256},       {"intermediate_size", 512}, {"num_attention_heads", 4},
                        {"num_key_value_heads", 2}, {"num_hidden_layers", 2},   {"max_position_embeddings", 128},
                        {"rms_norm_eps", 1e-5},     {"rope_theta", 5000.0}};
    const json gpt = {{"hidden_size", 256}, {"n_layer", 2}, {"n_head", 4}};
    if (family == "gpt2") {
      config.update({{"model_type", "gpt2"},
                     {"n_embd", 256},
                     {"n_head", 4},
                     {"n_layer", 2},
                     {"n_positions", 128},
                     {"tie_word_embeddings", true}});
    } else if (family == "t5") {
      config.update({{"model_type", "t5"},
                     {"d_model", 256},
                     {"d_kv", 64},
                     {"d_ff", 512},
                     {"num_heads", 4},
                     {"num_layers", 2},
                     {"eos_token_id", 1},
                     {"decoder_start_token_id", 0},
                     {"feed_forward_proj", "gated-gelu"}});
    } else if (family == "bert" || family == "roberta") {
      config.update(llama);
      config.update(
          {{"model_type", family}, {"tie_word_embeddings", true}, {"pad_token_id", family == "bert" ? 0 : 1}});
      config["architectures"] = {family == "bert" ? "BertForMaskedLM" : "RobertaForSequenceClassification"};
    } else if (family == "bloom" || family == "falcon") {
      config.update(gpt);
      config.update({{"model_type", family}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}});
    } else {
      config.update(llama);
      config["model_type"] = family == "llama3" ? "llama" : family;
      if (family == "llama3")
        config["rope_scaling"] = {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 8192}};
      if (family == "mixtral") config.update({{"num_local_experts", 3}, {"intermediate_size", 256}});
      if (family == "qwen3_moe")
        config.update(
            {{"num_experts", 3}, {"num_experts_per_tok", 2}, {"norm_topk_prob", true}, {"moe_intermediate_size", 256}});
      if (family.starts_with("gemma"))
        config.update({{"head_dim", 64}, {"query_pre_attn_scalar", 64}, {"tie_word_embeddings", true}});
      if (family == "phi3") config["pad_token_id"] = 0;
      if (family == "smollm3") config.update({{"num_hidden_layers", 4}, {"pad_token_id", 0}});
    }
    config.update(more);
    const std::string from = in(family + "_config"), to = in(family + (tied ? "_tied" : ""));
    std::filesystem::remove_all(to);
    std::filesystem::create_directories(from);
    constexpr auto kCopy = std::filesystem::copy_options::overwrite_existing | std::filesystem::copy_options::recursive;
    if (config["vocab_size"] == kSizeOfT5)
      std::filesystem::copy(test::kTestData + "/tokenizers/t5_spiece.model", from + "/spiece.model", kCopy);
    else if (family == "t5")
      write_characters(from);
    else
      std::filesystem::copy(kTokenizers + (has_own_tokenizer(family) ? family : "chatml"), from, kCopy);
    write_file_atomically(from + "/config.json", config.dump());
    make_model(from, to);
    return to;
  }

  static bool has_own_tokenizer(const std::string& family) {
    return family == "gpt2" || family == "bert" || family == "roberta";
  }

  /// A tokenizer of unigrams whose pieces are single characters.
  static void write_characters(const std::string& folder) {
    const std::string begin = "\u2581";
    json pieces = json::array();
    for (const std::string token : {"<pad>", "</s>", "<unk>"}) pieces.push_back(json::array({token, 0}));
    pieces.push_back(json::array({begin, -2}));
    for (char c = '!'; c <= '~'; ++c)
      for (const std::string& before : {std::string(), begin}) pieces.push_back(json::array({before + c, -5 - c % 7}));
    const json metaspace = {{"type", "Metaspace"}, {"replacement", begin}, {"prepend_scheme", "always"}};
    json root = {
        {"version", "1.0"},
        {"pre_tokenizer", metaspace},
        {"decoder", metaspace},
        {"model", {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", pieces}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single",
           {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
          {"pair", json::array()},
          {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}}};
    for (int id = 0; id < 3; ++id)
      root["added_tokens"].push_back({{"id", id}, {"content", pieces[id][0]}, {"special", true}});
    write_file_atomically(folder + "/tokenizer.json", root.dump());
    write_file_atomically(folder + "/tokenizer_config.json",
                          R"({"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})");
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
  // tests/unit/models holds all families against the converter's files
  for (const char* family : {"llama", "llama3", "mistral", "qwen2", "mixtral", "gemma3_text", "gpt2"}) {
    const std::string model = make(family), file = exported(model, "f16");
    expect_weights(file, model, 0);
    EXPECT_EQ(answered(file), answered(model)) << family;
  }
  for (const char* family : {"llama", "t5"}) {
    const std::string tied = make(family, true), file = exported(tied, "f16");
    EXPECT_EQ(io::open_gguf(file)->find("output.weight"), nullptr);
    EXPECT_EQ(answered(file), answered(tied)) << family;
  }
}

// Version 5 of transformers scales what a head reads, or not, whether it is tied or not; no key of the format says so.
TEST_F(GgufExports, AHeadOfT5IsWrittenAsReadersComputeIt) {
  const json unscaled = {{"scale_decoder_outputs", false}}, scaled = {{"scale_decoder_outputs", true}};
  const std::string own = make("t5", false, scaled), of_table = make("t5", true, unscaled);
  const auto values = [](const std::string& file, const std::string& name) {
    return io::read_tensor(*models::open_model_weights(file), name).to(at::kFloat);
  };
  EXPECT_TRUE(at::equal(values(exported(own, "f32"), "lm_head.weight"), values(own, "lm_head.weight") / 16));
  EXPECT_EQ(answered(exported(own, "f32")), answered(own));
  auto config = json::parse(read_file(own + "/config.json"));
  config["tie_word_embeddings"] = true;  // so it writes of every T5
  write_file_atomically(own + "/config.json", config.dump());
  EXPECT_TRUE(at::equal(values(exported(own, "f32"), "lm_head.weight"), values(own, "lm_head.weight") / 16));
  EXPECT_TRUE(at::equal(values(exported(of_table, "f32"), "lm_head.weight"), values(of_table, "shared.weight")));
  EXPECT_EQ(answered(exported(of_table, "f32")), answered(of_table));
}

TEST_F(GgufExports, UnigramsAndWhatATextGoesThroughAreInTheFile) {
  const auto file = io::open_gguf(exported(make("t5", true, {{"vocab_size", kSizeOfT5}, {"d_model", 64}}), "q8_0"));
  const GgufHeader& h = file->header();
  EXPECT_EQ(h.text("tokenizer.ggml.model"), "t5");
  EXPECT_EQ(h.boolean("tokenizer.ggml.add_space_prefix"), true);
  EXPECT_EQ(h.boolean("tokenizer.ggml.remove_extra_whitespaces"), true);
  EXPECT_FALSE(h.integers("tokenizer.ggml.precompiled_charsmap")->empty());
  const auto& tokens = *h.texts("tokenizer.ggml.tokens");
  const auto& types = *h.integers("tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 32128u);
  EXPECT_EQ(tokens[32000], "<extra_id_99>");
  EXPECT_EQ(tokens[32127], "[PAD32127]");
  const std::vector<std::int64_t> first = {3, 3, 2, 1};  // <pad>, </s>, <unk>, a piece
  EXPECT_TRUE(std::equal(first.begin(), first.end(), types.begin()));
  EXPECT_EQ(types[32127], 5);
  const auto made = text::open_tokenizer(in("q8_0.gguf")), given = text::open_tokenizer(in("t5_tied"));
  for (const std::string text : {"The  quick brown fox", " \n na\u00efve \ufb01ne", "x<extra_id_3>y</s>", ""})
    EXPECT_EQ(made->encode(text).ids, given->encode(text).ids) << text;
}

TEST_F(GgufExports, AnEncoderIsWrittenWithItsWordsAndItsPooling) {
  const std::string model = make("bert", false, {{"vocab_size", 30522}, {"hidden_size", 64}});
  const auto given = text::open_tokenizer(model);
  std::ostringstream out, err;
  export_checkpoint({model, in("plain.gguf"), "--gguf", "f16"}, out, err);
  EXPECT_NE(out.str().find("no modules.json says how"), std::string::npos) << out.str();
  write_file_atomically(model + "/modules.json",
                        R"([{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}])");
  std::filesystem::create_directories(model + "/1_Pooling");
  write_file_atomically(model + "/1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  const auto file = io::open_gguf(exported(model, "f16"));
  const GgufHeader& h = file->header();
  EXPECT_EQ(h.text("general.architecture"), "bert");
  EXPECT_EQ(h.text("tokenizer.ggml.model"), "bert");
  EXPECT_EQ(h.integer("bert.pooling_type"), 1);
  EXPECT_EQ(h.integer("tokenizer.ggml.token_type_count"), 2);
  EXPECT_EQ(h.boolean("bert.attention.causal"), false);
  EXPECT_EQ(h.boolean("tokenizer.ggml.add_sep_token"), false);
  EXPECT_EQ(h.integer("tokenizer.ggml.bos_token_id"), given->cls_id());
  EXPECT_EQ(file->find("output.weight"), nullptr);
  EXPECT_EQ(file->type_of("token_types.weight"), "F32");
  const auto made = text::open_tokenizer(in("f16.gguf"));
  for (const std::string text : {"The quick brown fox", "  na\u00efve, \u4e2d\u6587!", "x[MASK]y", ""})
    EXPECT_EQ(made->encode(text).ids, given->encode(text).ids) << text;
  write_file_atomically(model + "/1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  EXPECT_THROW(exported(model, "f16"), ConfigError);
}

TEST_F(GgufExports, AnAnswerOfGlmEndsWithTheUsersTurn) {
  const std::string model = make("glm4", false, {{"head_dim", 64}, {"pad_token_id", 0}});
  auto root = json::parse(read_file(model + "/tokenizer.json"));
  root["added_tokens"].push_back({{"id", 2010}, {"content", "<|user|>"}, {"special", true}});
  write_file_atomically(model + "/tokenizer.json", root.dump());
  const auto file = io::open_gguf(exported(model, "f16"));
  EXPECT_EQ(file->header().integer("tokenizer.ggml.eot_token_id"), 2010);
  EXPECT_EQ(file->header().integer("glm4.rope.dimension_count"), 32);
}

TEST_F(GgufExports, AClassifierIsWrittenAsAReranker) {
  const std::string model =
      make("roberta", false, {{"vocab_size", 50265}, {"hidden_size", 64}, {"type_vocab_size", 1}});
  const auto file = io::open_gguf(exported(model, "f32"));
  const GgufHeader& h = file->header();
  EXPECT_EQ(h.integer("bert.pooling_type"), 4);
  EXPECT_EQ(h.integer("bert.context_length"), 126);
  EXPECT_EQ(h.text("tokenizer.ggml.pre"), "roberta-bpe");
  EXPECT_EQ(h.boolean("tokenizer.ggml.add_sep_token"), true);
  EXPECT_EQ(h.texts("bert.classifier.output_labels")->size(), 2u);
  const auto values = [](const std::string& folder, const std::string& name) {
    return io::read_tensor(*models::open_model_weights(folder), name).to(at::kFloat);
  };
  const std::string written = in("f32.gguf");
  EXPECT_TRUE(at::equal(values(written, "pooler.dense.weight"), values(model, "classifier.dense.weight")));
  EXPECT_TRUE(at::equal(values(written, "classifier.weight"), values(model, "classifier.out_proj.weight")));
  EXPECT_TRUE(at::equal(values(written, "embeddings.position_embeddings.weight"),
                        values(model, "roberta.embeddings.position_embeddings.weight").slice(0, 2)));
}

// Texts lose spaces where the normalizer takes them out, or where words are cut at them.
TEST_F(GgufExports, WhetherSpacesAreTakenOutIsSaid) {
  const std::string model = make("t5"), key = "tokenizer.ggml.remove_extra_whitespaces";
  EXPECT_EQ(io::open_gguf(exported(model, "q8_0"))->header().boolean(key), false);
  auto root = json::parse(read_file(model + "/tokenizer.json"));
  const json metaspace = root["pre_tokenizer"];
  root["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", json::array({json{{"type", "WhitespaceSplit"}}, metaspace})}};
  write_file_atomically(model + "/tokenizer.json", root.dump());
  EXPECT_EQ(io::open_gguf(exported(model, "q8_0"))->header().boolean(key), true);
}

TEST_F(GgufExports, PackedFormsKeepWhatTheirBitsCanKeep) {
  for (const char* family : {"llama", "gpt2", "mixtral", "falcon", "t5"}) {
    const std::string model = make(family);
    expect_weights(exported(model, "q8_0"), model, 0.008);
    expect_weights(exported(model, "q4_k_m"), model, 0.09);
  }
}

TEST_F(GgufExports, InFloat32NothingIsRounded) {
  const std::string model = make("llama");
  EXPECT_EQ(io::open_gguf(exported(model, "f32"))->type_of("blk.0.attn_q.weight"), "F32");
}

TEST_F(GgufExports, WeightsThatArePackedBecomeTheirValues) {
  for (const char* family : {"llama", "gpt2"}) {
    for (const std::string type : {"nf4", "int8"}) {
      const std::string model = make(family), packed = in(type);
      std::ostringstream out, err;
      ASSERT_EQ(quantize({model, packed, "--type", type, "--overwrite_output_dir"}, out, err), 0);
      const auto written = models::open_model_weights(exported(packed, "f32")),
                 stored = models::open_model_weights(packed), dense = models::open_model_weights(model);
      for (const auto& info : dense->tensors()) {
        if (info.name.find(".c_") != std::string::npos) continue;   // GPT-2's: the folder's codes are of the transpose
        const auto expected = io::read_tensor(*stored, info.name);  // rounded to its dtype
        EXPECT_TRUE(at::equal(io::read_tensor(*written, info.name).to(expected.scalar_type()), expected))
            << family << " " << type << " " << info.name;
      }
    }
  }
}

TEST_F(GgufExports, WhereNothingTrainsTheFileStaysPackedAndAnswersAsItsValuesDo) {
  for (const char* family : {"llama", "gpt2", "falcon", "gemma2", "t5", "mixtral"}) {
    const std::string model = make(family);
    for (const std::string form : {"q8_0", "q4_k_m"}) {
      SCOPED_TRACE(family + (" " + form));
      const std::string file = exported(model, form), dense = in("dense");
      std::ostringstream out, err;
      ASSERT_EQ(export_checkpoint({file, dense, "--dtype", "float32", "--overwrite_output_dir"}, out, err), 0);
      EXPECT_EQ(answered(file), answered(dense));
      GenerateOptions options;
      options.model = file;
      const auto opened = open_model(options, comm::make_solo());
      std::int64_t packed = 0, linear = 0;
      for (const auto& module : opened.loaded.model->modules()) {
        packed += dynamic_cast<const nn::PackedWeight*>(module.get()) != nullptr;
        linear += dynamic_cast<const nn::Linear*>(module.get()) != nullptr;
      }
      EXPECT_GE(packed, 8);
      EXPECT_LE(linear - packed, 3) << "heads and gates may be dense";
    }
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
  EXPECT_EQ(gpt2->type_of("blk.0.attn_qkv.weight"), "Q4_K");
  EXPECT_EQ(gpt2->type_of("blk.1.attn_qkv.weight"), "Q6_K");
  EXPECT_EQ(gpt2->type_of("position_embd.weight"), "F32");
  const auto experts = io::open_gguf(exported(make("mixtral", false, {{"num_local_experts", 8}}), "q4_k_m"));
  const std::vector<std::pair<std::string, std::string>> of_eight = {
      {"blk.0.attn_v.weight", "Q8_0"},        {"blk.0.attn_k.weight", "Q8_0"},
      {"blk.0.attn_output.weight", "Q5_K"},   {"blk.0.ffn_down_exps.weight", "Q4_K"},
      {"blk.1.ffn_down_exps.weight", "Q6_K"}, {"blk.0.ffn_gate_inp.weight", "F32"}};
  for (const auto& [name, type] : of_eight) EXPECT_EQ(experts->type_of(name), type) << name;
  EXPECT_EQ(experts->header().text("general.size_label"), "8x1.8M");
  const auto falcon = io::open_gguf(exported(make("falcon", true), "q4_k_m"));
  EXPECT_EQ(falcon->type_of("token_embd.weight"), "Q8_0");
  EXPECT_EQ(falcon->type_of("blk.1.ffn_down.weight"), "Q5_K");
  // It counts the decoder's before the encoder's, and compares with the encoder's layers.
  const auto t5 = io::open_gguf(
      exported(make("t5", true, {{"num_layers", 8}, {"num_decoder_layers", 8}, {"d_ff", 256}}), "q4_k_m"));
  const std::vector<std::pair<std::string, std::string>> of_t5 = {
      {"token_embd.weight", "Q6_K"},         {"dec.blk.0.attn_rel_b.weight", "F16"},
      {"dec.blk.0.ffn_down.weight", "Q6_K"}, {"dec.blk.1.ffn_down.weight", "Q4_K"},
      {"dec.blk.3.ffn_down.weight", "Q6_K"}, {"enc.blk.1.ffn_down.weight", "Q6_K"},
      {"dec.blk.0.attn_v.weight", "Q6_K"},   {"dec.blk.1.cross_attn_v.weight", "Q4_K"},
      {"enc.blk.7.attn_v.weight", "Q6_K"},   {"dec.blk.7.cross_attn_v.weight", "Q4_K"},
      {"enc.blk.0.attn_o.weight", "Q4_K"},   {"enc.output_norm.weight", "F32"}};
  for (const auto& [name, type] : of_t5) EXPECT_EQ(t5->type_of(name), type) << name;
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

/// LoRA of ranks 2 and (by rank_pattern) 4 over every kind of matrix that the file holds in another way than the
/// folder.
class GgufAdapters : public GgufExports {
 protected:
  std::string adapter(const std::string& model, json config, const std::vector<std::string>& modules) {
    config.update({{"peft_type", "LORA"},
                   {"r", 2},
                   {"lora_alpha", 6},
                   {"base_model_name_or_path", model},
                   {"target_modules", modules}});
    const std::string folder = in("the adapter");
    std::filesystem::create_directories(folder);
    write_file_atomically(folder + "/adapter_config.json", config.dump());
    const auto weights = models::open_model_weights(model);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    auto random = at::detail::createCPUGenerator(3);
    for (const auto& info : weights->tensors())
      for (const std::string& module : modules) {
        if (!info.name.ends_with(module + ".weight")) continue;
        const std::string name = "base_model.model." + info.name.substr(0, info.name.size() - 7);
        const bool is_table = module == "embed_tokens", is_conv1d = module.starts_with("c_");
        const auto rows = info.shape[is_conv1d ? 1 : 0], columns = info.shape[is_conv1d ? 0 : 1];
        const std::int64_t rank = config.contains("rank_pattern") && module == "v_proj" ? 4 : 2;
        const auto inputs = is_table ? rows : columns, outputs = is_table ? columns : rows;
        tensors.emplace_back(name + (is_table ? ".lora_embedding_A" : ".lora_A.weight"),
                             at::normal(0.0, 0.05, {rank, inputs}, random));
        tensors.emplace_back(name + (is_table ? ".lora_embedding_B" : ".lora_B.weight"),
                             at::normal(0.0, 0.05, {outputs, rank}, random));
      }
    io::write_safetensors(folder + "/adapter_model.safetensors", tensors);
    return folder;
  }

  /// What llama.cpp adds to each matrix of the base, against the file of the merged model: (merged - base) as the two
  /// files have it.
  void expect_difference(const std::string& file, const std::string& model, const std::string& adapter) {
    const auto lora = io::open_gguf(file);
    EXPECT_EQ(lora->header().text("general.type"), "adapter");
    EXPECT_EQ(lora->header().text("adapter.type"), "lora");
    const auto alpha = lora->header().number("adapter.lora.alpha");
    ASSERT_TRUE(alpha);
    std::filesystem::rename(exported(model, "f32"), in("base.gguf"));
    std::filesystem::rename(exported(adapter, "f32", {"--merge", "--dtype", "float32"}), in("merged.gguf"));
    const auto base = io::open_gguf(in("base.gguf")), merged = io::open_gguf(in("merged.gguf"));
    std::size_t changed = 0;
    for (const auto& info : base->tensors()) {
      const auto difference = io::read_tensor(*merged, info.name) - io::read_tensor(*base, info.name);
      if (!lora->find(info.name + ".lora_a")) {
        EXPECT_EQ(difference.abs().max().item<float>(), 0) << info.name;
        continue;
      }
      auto a = io::read_tensor(*lora, info.name + ".lora_a");
      const auto b = io::read_tensor(*lora, info.name + ".lora_b");
      if (info.name == "token_embd.weight") {  // rows of a are looked up
        EXPECT_EQ(a.size(0), info.shape[0]);
        EXPECT_TRUE(at::allclose(at::mm(a, b.t()) * (*alpha / static_cast<double>(b.size(1))), difference, 0, 1e-6));
      } else {
        EXPECT_TRUE(at::allclose(at::mm(b, a) * (*alpha / static_cast<double>(b.size(1))), difference, 0, 1e-6))
            << info.name;
      }
      ++changed;
    }
    EXPECT_EQ(2 * changed, lora->tensors().size());
    EXPECT_GT(changed, 0u);
  }
};

TEST_F(GgufAdapters, WhatTheServerAddsIsWhatMergingAdds) {
  const std::string llama = make("llama"), gpt2 = make("gpt2");
  const std::string plain = adapter(llama, json::object(), {"q_proj", "k_proj", "v_proj", "down_proj", "embed_tokens"});
  expect_difference(exported(plain, "f32"), llama, plain);
  const std::string patterns =
      adapter(llama, {{"use_rslora", true}, {"rank_pattern", {{"v_proj", 4}}}, {"alpha_pattern", {{"q_proj", 10}}}},
              {"q_proj", "v_proj"});
  expect_difference(exported(patterns, "f32"), llama, patterns);
  const std::string conv1d = adapter(gpt2, {{"fan_in_fan_out", true}}, {"c_attn", "c_fc"});
  expect_difference(exported(conv1d, "f32"), gpt2, conv1d);
  const std::string t5 = make("t5"),
                    over_t5 = adapter(t5, json::object(), {"SelfAttention.q", "EncDecAttention.v", "wo"});
  expect_difference(exported(over_t5, "f32"), t5, over_t5);
  const std::string scaled = make("t5", false, {{"scale_decoder_outputs", true}}),
                    over_head = adapter(scaled, json::object(), {"lm_head"});
  expect_difference(exported(over_head, "f32"), scaled, over_head);
  for (const char* family : {"gpt_neox", "falcon"}) {  // rows of a joint projection move
    const std::string joint = make(family, std::string(family) == "falcon"),
                      over_joint = adapter(joint, json::object(), {"query_key_value", "dense_h_to_4h"});
    expect_difference(exported(over_joint, "f32"), joint, over_joint);
  }
}

TEST_F(GgufAdapters, PackedFormsAreThoseThatRowsAllow) {
  const std::string model = make("llama");
  const auto file = io::open_gguf(exported(adapter(model, json::object(), {"q_proj"}), "q8_0"));
  EXPECT_EQ(file->type_of("blk.0.attn_q.weight.lora_a"), "Q8_0");
  EXPECT_EQ(file->type_of("blk.0.attn_q.weight.lora_b"), "F16");  // rows of two
  EXPECT_EQ(file->header().text("general.name"), "The Adapter");
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
  const std::string model = in("electra"), file = in("electra.gguf");
  std::filesystem::copy(test::kTestData + "/goldens/A_models/electra_mlm", model);
  EXPECT_SAYS(message({model, file, "--gguf", "f16"}), "classifiers of bert and roberta alone; found electra");
  EXPECT_NE(message({model, in("folder"), "--gguf", "f16"}).find("must end in .gguf"), std::string::npos);
  EXPECT_SAYS(message({model, file}), "without --gguf a folder is written; add --gguf f16");
  // tokenizer.json has 2003 tokens, and the class adds its own behind them.
  EXPECT_SAYS(message({make("llama", false, {{"vocab_size", 2003}}), file, "--gguf", "f16"}),
              "token 2003 ('<s>') lies outside the model's table of 2003 rows");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(GgufExports, WeightsThatAreNotThoseOfTheConfigurationAreRefused) {
  using Change = std::function<void(std::map<std::string, at::Tensor>&)>;
  const std::string value = "model.layers.1.self_attn.v_proj.weight",
                    expert = "model.layers.1.block_sparse_moe.experts.2.w3.weight";
  const std::vector<std::tuple<std::string, std::string, Change>> cases = {
      {"llama", "lacks the tensors " + value, [&](auto& t) { t.erase(value); }},
      {"llama", "'" + value + "' in .* has the shape \\[128, 128\\].* asks for \\[128, 256\\]",
       [&](auto& t) { t[value] = t[value].narrow(1, 0, 128).contiguous(); }},
      {"llama", "holds tensors that this model does not have: model.layers.2.input_layernorm.weight",
       [&](auto& t) { t["model.layers.2.input_layernorm.weight"] = t["model.norm.weight"].clone(); }},
      {"mixtral", "lacks the tensors " + expert, [&](auto& t) { t.erase(expert); }}};
  for (const auto& [family, message, change] : cases) {
    const std::string model = make(family), file = in("refused.gguf");
    std::map<std::string, at::Tensor> tensors;
    {
      const auto weights = models::open_model_weights(model);
      for (const auto& info : weights->tensors()) tensors[info.name] = io::read_tensor(*weights, info.name).clone();
    }
    change(tensors);
    io::write_safetensors(model + "/model.safetensors", {tensors.begin(), tensors.end()});
    std::ostringstream out, err;
    try {
      export_checkpoint({model, file, "--gguf", "f16"}, out, err);
      ADD_FAILURE() << message;
    } catch (const DataError& e) {
      EXPECT_TRUE(std::regex_search(e.what(), std::regex(message))) << e.what();
    }
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST_F(GgufExports, WeightsThatAFolderLacksAreNamedInOtherFormsToo) {
  const std::string model = make("llama"), gone = "model.norm.weight";
  std::vector<std::pair<std::string, at::Tensor>> kept;
  {
    const auto weights = models::open_model_weights(model);
    for (const auto& info : weights->tensors())
      if (info.name != gone) kept.emplace_back(info.name, io::read_tensor(*weights, info.name).clone());
  }
  io::write_safetensors(model + "/model.safetensors", kept);
  std::ostringstream out, err;
  EXPECT_EQ(quantize({model, in("nf4"), "--type", "nf4"}, out, err), 0);
  EXPECT_NE(out.str().find("lacks the tensors " + gone + ": what is written lacks them, too"), std::string::npos);
  try {
    export_checkpoint({model, in("folder")}, out, err);
    ADD_FAILURE();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("lacks the tensors " + gone + "; do config.json"), std::string::npos);
  }
}

/// The folder's body alone, as transformers writes LlamaModel, GPT2Model and BertModel.
void keep_body(const std::string& folder, const std::string& architecture) {
  std::vector<std::pair<std::string, at::Tensor>> body;
  {
    const auto weights = models::open_model_weights(folder);
    for (const auto& info : weights->tensors())
      if (const auto dot = info.name.find('.');
          info.name.find("lm_head") == std::string::npos && info.name.find("cls."))
        body.emplace_back(info.name.substr(dot + 1), io::read_tensor(*weights, info.name).clone());
  }
  io::write_safetensors(folder + "/model.safetensors", body);
  auto config = json::parse(read_file(folder + "/config.json"));
  config["architectures"] = {architecture};
  write_file_atomically(folder + "/config.json", config.dump());
}

TEST_F(GgufExports, ABodyAloneIsExportedWithoutAHead) {
  const std::pair<const char*, const char*> cases[] = {{"llama", "LlamaModel"}, {"bert", "BertModel"}};
  for (const auto& [family, architecture] : cases) {
    const std::string model = make(family), folder = in(std::string(family) + "_body");
    keep_body(model, architecture);
    std::ostringstream out, err;
    ASSERT_EQ(export_checkpoint({model, folder, "--dtype", "float32"}, out, err), 0);
    EXPECT_SAYS(out.str(), "without a head");
    const auto before = models::open_model_weights(model), after = models::open_model_weights(folder);
    ASSERT_EQ(before->tensors().size(), after->tensors().size());
    for (const auto& info : before->tensors()) {
      EXPECT_EQ(after->find(info.name)->dtype, at::kFloat);
      EXPECT_TRUE(at::equal(io::read_tensor(*before, info.name).to(at::kFloat), io::read_tensor(*after, info.name)));
    }
    const auto config = json::parse(read_file(folder + "/config.json"));
    EXPECT_EQ(config["architectures"], json::array({architecture}));
    EXPECT_EQ(config["torch_dtype"], "float32");
    EXPECT_THROW(export_checkpoint({model, in("packed"), "--type", "nf4"}, out, err), ConfigError);
  }
}

TEST_F(GgufExports, ABodyWhoseHeadIsMissingIsWrittenWithoutIt) {
  const auto names = [](const std::string& file) {
    Words all;
    const auto weights = io::open_gguf(file);
    for (const auto& info : weights->tensors()) all.push_back(info.name);
    return all;
  };
  const std::string model = make("llama");
  auto expected = names(exported(model, "f16"));
  ASSERT_EQ(std::erase(expected, "output.weight"), 1u);
  keep_body(model, "LlamaModel");
  std::ostringstream out, err;
  ASSERT_EQ(export_checkpoint({model, in("body.gguf"), "--gguf", "f16"}, out, err), 0);
  EXPECT_EQ(names(in("body.gguf")), expected);
  EXPECT_SAYS(out.str(), "has no head, and readers take the token table in its place");
}

TEST_F(GgufExports, ABodyWhoseHeadIsItsTableIsWrittenLikeItsModel) {
  const std::string model = make("llama", true);
  const auto whole = read_file(exported(model, "f16"));
  keep_body(model, "LlamaModel");
  EXPECT_EQ(read_file(exported(model, "f16")), whole);
}

// Readers of the file would compute another model without a word.
TEST_F(GgufExports, WhatTheFormatCannotSayOfAModelIsRefusedOrSaid) {
  const auto said = [&](const std::string& family, const json& more) -> std::string {
    const std::string model = make(family, false, more);
    std::ostringstream out, err;
    try {
      export_checkpoint({model, in("said.gguf"), "--gguf", "f16", "--overwrite_output_dir"}, out, err);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return out.str();
  };
  EXPECT_SAYS(said("llama", {{"hidden_act", "gelu"}}), "no key for the activation of this llama");
  EXPECT_SAYS(said("gpt2", {{"activation_function", "relu"}}), "no key for the activation of this gpt2");
  EXPECT_SAYS(said("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}), "scale_attn_by_inverse_layer_idx");
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  EXPECT_SAYS(said("qwen2", {{"rope_scaling", yarn}}), "saved in");
  EXPECT_SAYS(said("mistral", {{"sliding_window", 32}}), "pass over the sliding window of 32 tokens");
  EXPECT_EQ(said("mistral", {{"sliding_window", 4096}}).find("window"), std::string::npos);
}

TEST_F(GgufExports, BiasesAndTheSizeOfAHeadAreKept) {
  const std::string llama = make("llama", false, {{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 32}});
  EXPECT_EQ(answered(exported(llama, "f16")), answered(llama));
  const std::string qwen2 = make("qwen2", false, {{"head_dim", 32}});
  EXPECT_EQ(answered(exported(qwen2, "f16")), answered(qwen2));
}

// PeftModel over AutoModel: names in the adapter's file are those of LlamaModel.
TEST_F(GgufAdapters, OfABodyAloneAreMergedLikeThoseOfTheWholeModel) {
  const std::string model = make("llama"), body = in("body");
  std::filesystem::copy(model, body);
  keep_body(body, "LlamaModel");
  const Words modules = {"q_proj", "down_proj"};
  const auto merged = [&](const std::string& base, const std::string& of) {
    std::ostringstream out, err;
    EXPECT_EQ(
        merge({"--model", base, "--adapter", of, "--output_dir", in("merged"), "--overwrite_output_dir"}, out, err), 0);
    std::map<std::string, at::Tensor> values;
    const auto weights = models::open_model_weights(in("merged"));
    for (const auto& info : weights->tensors()) values[info.name] = io::read_tensor(*weights, info.name).clone();
    return values;
  };
  const auto whole = merged(model, adapter(model, json::object(), modules));
  const std::string folder = adapter(body, json::object(), modules);
  const std::string name = "base_model.model.layers.0.self_attn.q_proj.lora_A.weight";
  ASSERT_NE(io::open_weights(folder + "/adapter_model.safetensors")->find(name), nullptr);
  auto config = json::parse(read_file(folder + "/adapter_config.json"));
  for (const json& targets : {json(modules), json(R"(layers\.\d\.(self_attn\.q_proj|mlp\.down_proj))")}) {
    config["target_modules"] = targets;
    write_file_atomically(folder + "/adapter_config.json", config.dump());
    const auto over_whole = merged(model, folder), over_body = merged(body, folder);
    ASSERT_EQ(over_whole.size(), whole.size());
    ASSERT_EQ(over_body.size() + 1, whole.size()) << "no head";
    for (const auto& [parameter, value] : whole) {
      EXPECT_TRUE(at::equal(over_whole.at(parameter), value)) << parameter;
      if (parameter == "lm_head.weight") continue;
      EXPECT_TRUE(at::equal(over_body.at(parameter.substr(std::string("model.").size())), value)) << parameter;
    }
    EXPECT_EQ(json::parse(read_file(in("merged/config.json")))["architectures"], json::array({"LlamaModel"}));
  }
}

TEST_F(GgufAdapters, WhatAnAdapterOfTheFormatCannotSayIsRefused) {
  std::string model = make("llama");
  std::vector<std::string> modules = {"q_proj"};
  const auto message = [&](const json& config, const std::string& form = "f32") -> std::string {
    std::ostringstream out, err;
    try {
      export_checkpoint({adapter(model, config, modules), in("x.gguf"), "--gguf", form}, out, err);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({{"init_lora_weights", "pissa"}}).find("takes a part off the base"), std::string::npos);
  EXPECT_NE(message({{"alora_invocation_tokens", {1, 2}}}).find("nor part of merged weights"), std::string::npos);
  EXPECT_NE(message(json::object(), "q4_k_m").find("an adapter is written as f32, f16 or q8_0"), std::string::npos);
  const std::string folder = adapter(model, json::object(), {"q_proj"});
  auto tensors = std::vector<std::pair<std::string, at::Tensor>>{};
  const auto read = io::open_weights(folder + "/adapter_model.safetensors");
  for (const auto& info : read->tensors()) tensors.emplace_back(info.name, io::read_tensor(*read, info.name));
  tensors.emplace_back("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", at::ones({256}));
  io::write_safetensors(folder + "/adapter_model.safetensors", tensors);
  std::ostringstream out, err;
  EXPECT_THROW(export_checkpoint({folder, in("x.gguf"), "--gguf", "f32"}, out, err), ConfigError);
  model = make("mixtral");
  modules = {"w1"};
  EXPECT_SAYS(message(json::object()), "block_sparse_moe.experts.0.w1' is one of a layer's experts");
  EXPECT_FALSE(std::filesystem::exists(in("x.gguf")));
}

}  // namespace
}  // namespace tessera::tasks
