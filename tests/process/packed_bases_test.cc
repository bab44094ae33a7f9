// The commands over packed bases of every form, on real processes: trained over on any number of ranks, gone on with,
// generated from, merged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/grouped_llama.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::kDemo;
using test::kTestData;
using test::Words;
using test::operator+;

class PackedBases : public testing::Test {
 protected:
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// A tokenizer of 96 words: w0 and so on, and those of the rows to classify.
  void SetUp() override {
    json vocab = json::object();
    const auto add = [&](const std::string& word) {
      if (!vocab.contains(word)) vocab.emplace(word, vocab.size());
    };
    for (int i = 0; i < 60; ++i) add("w" + std::to_string(i));
    std::ifstream rows(kTestData + "/classify/rows_train.jsonl");
    for (std::string line; std::getline(rows, line);) {
      std::istringstream text(json::parse(line)["text"].get<std::string>());
      for (std::string word; text >> word;) add(word);
    }
    ASSERT_LE(vocab.size(), 96u);
    const json tokenizer = {{"version", "1.0"},
                            {"added_tokens", json::array()},
                            {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                            {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w0"}}}};
    const json settings = {
        {"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "w1"}, {"pad_token", "w2"}, {"unk_token", "w0"}};
    fs::create_directories(in("words"));
    write_file_atomically(in("words/tokenizer.json"), tokenizer.dump());
    write_file_atomically(in("words/tokenizer_config.json"), settings.dump());
    std::string texts;
    for (int r = 0; r < 8; ++r) {
      std::string text;
      for (int i = 0; i < 12; ++i) text += "w" + std::to_string((7 * r + 5 * i) % 60) + " ";
      texts += json{{"text", text}}.dump() + "\n";
    }
    write_file_atomically(in("rows.jsonl"), texts);
  }

  std::string run(const Words& words) const {
    const auto r = test::run(Words{TESSERA_BINARY} + words);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  }
  void launch(int ranks, const Words& words) const {
    run(Words{"launch", "--cpu", "--num_processes", std::to_string(ranks)} + words);
  }
  std::vector<double> losses(const std::string& out) const {
    std::vector<double> found;
    std::ifstream file(in(out) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const auto row = json::parse(line); row.contains("train_loss_exact"))
        found.push_back(row["train_loss_exact"]);
    return found;
  }
  void expect_losses(const std::string& out, const std::string& expected) const {
    const auto got = losses(out), want = losses(expected);
    ASSERT_FALSE(want.empty()) << expected;
    ASSERT_EQ(got.size(), want.size()) << out;
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << out << i;
  }
  void expect_same_file(const std::string& a, const std::string& b) const {
    EXPECT_TRUE(read_file(in(a)) == read_file(in(b))) << a << " " << b;
  }

  /// The adapter's file at the end of a run, in whatever folder the command puts it.
  std::string adapter_of(const std::string& out) const {
    for (const auto& entry : fs::recursive_directory_iterator(in(out))) {
      const auto path = entry.path().string();
      if (path.ends_with("/adapter_model.safetensors") && path.find("/checkpoint-") == std::string::npos) return path;
    }
    return "no adapter in " + out;
  }

  /// A command that trains an adapter, told the same whatever the base: where it begins, its words, its batch.
  struct Command {
    Words words;
    std::string model_flag;
    int batch;
  };
  void train(const Command& c, int ranks, const std::string& model, const std::string& out,
             const Words& more = {}) const {
    launch(ranks, c.words +
                      Words{c.model_flag, model, "--output_dir", in(out), "--per_device_train_batch_size",
                            std::to_string(c.batch / ranks), "--learning_rate", "1e-2", "--lr_scheduler_type",
                            "constant", "--max_steps", "4", "--logging_steps", "1", "--disable_tqdm"} +
                      more);
  }
  /// Over the packed folder: on two ranks the losses of one, and a run that goes on ends in the same adapter.
  void train_over(const Command& c, const std::string& model, const std::string& name) const {
    const Words saves = {"--save_strategy", "steps", "--save_steps", "2"};
    train(c, 1, model, name + "1");
    train(c, 2, model, name + "2", saves);
    train(c, 2, model, name + "_on", saves + Words{"--resume_from_checkpoint", in(name + "2/checkpoint-2")});
    expect_losses(name + "2", name + "1");
    EXPECT_TRUE(read_file(adapter_of(name + "2")) == read_file(adapter_of(name + "_on"))) << name;
  }

  test::TempFolder folder_{"packed_bases"};
};

TEST_F(PackedBases, AGroupedOrGgufBaseIsTrainedOverGeneratedFromAndMerged) {
  test::write_grouped_llama(in("gptq"), {"gptq", 64, true});
  test::write_grouped_llama(in("awq"), {"awq", 128});
  const std::map<std::string, std::string> bases = {
      {"gptq", in("gptq")}, {"awq", in("awq")}, {"gguf", kTestData + "/gguf/k_quants.gguf"}};
  const Command sft = {{"sft", "--tokenizer_name_or_path", in("words"), "--dataset_name", in("rows.jsonl"),
                        "--use_peft_lora", "True", "--lora_target_modules", "all-linear", "--max_length", "32"},
                       "--model_name_or_path",
                       4};
  for (const auto& [name, base] : bases) {
    SCOPED_TRACE(name);
    train_over(sft, base, name + "_out");
    run({"export", base, in(name + "_dense"), "--dtype", "float32"});
    train(sft, 1, in(name + "_dense"), name + "_over_values");
    expect_losses(name + "_out1", name + "_over_values");
    for (const int ranks : {1, 2})
      launch(ranks, {"merge", "--model", base, "--adapter", in(name + "_out2"), "--output_dir",
                     in(name + "_merged" + std::to_string(ranks)), "--dtype", "float32"});
    expect_same_file(name + "_merged1/model.safetensors", name + "_merged2/model.safetensors");
    const auto answer = [&](const Words& of) {
      return run(Words{"generate", "--prompt", "w3 w8 w13", "--max_new_tokens", "8", "--tokenizer", in("words")} + of);
    };
    const auto expected = answer({"--model", in(name + "_merged1")});
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(answer({"--model", base, "--adapter", in(name + "_out2")}), expected);
    EXPECT_NE(answer({"--model", base}), expected);
  }
}

TEST_F(PackedBases, SequenceToSequenceAndClassifiersTrainOverFourAndEightBits) {
  run({"init-model", kDemo + "model", in("t5")});
  auto config = json::parse(read_file(in("t5/config.json")));
  config["dropout_rate"] = 0.0;
  write_file_atomically(in("t5/config.json"), config.dump());
  const Command seq2seq = {{"seq2seq", "--dataset_path", kDemo + "data/Sentences_demo.txt", "--max_eval_steps", "2"},
                           "--model_name_or_path",
                           8};
  const Command summarize = {
      {"summarize", "--train_rows", "32", "--val_rows", "4", "--max_source_length", "48", "--max_target_length", "16",
       "--data_dir", kTestData + "/wikihow", "--use_peft_lora", "true", "--bf16", "false"},
      "--model_name",
      8};
  const Command classify = {{"classify", "--tokenizer_name_or_path", in("words"), "--dataset_path",
                             kTestData + "/classify", "--label_column", "sentiment", "--use_peft_lora", "true",
                             "--lora_dropout", "0", "--ignore_mismatched_sizes", "true", "--max_length", "32"},
                            "--model",
                            24};
  for (const std::string type : {"nf4", "int8"}) {
    const auto packed = [&](const std::string& model, const std::string& name) {
      run({"quantize", model, in(name + type), "--type", type, "--dtype", "float32"});
      return in(name + type);
    };
    const auto t5 = packed(in("t5"), "t5_"), bert = packed(kTestData + "/goldens/B_train/base_bert", "bert_");
    train_over(seq2seq, t5, "seq2seq_" + type);
    train_over(summarize, t5, "summarize_" + type);
    train_over(classify, bert, "classify_" + type);
    const auto flag = type == "nf4" ? "--use_4bit_quantization" : "--use_8bit_quantization";
    train(seq2seq, 2, in("t5"), "seq2seq_read_" + type, {flag, "true"});
    EXPECT_EQ(losses("seq2seq_read_" + type), losses("seq2seq_" + type + "2"));
  }
}

/// What is refused, and what its message says: what was expected, what was found, and what to do.
TEST_F(PackedBases, WhatCannotBeIsRefusedByName) {
  const std::string gguf = kTestData + "/gguf/k_quants.gguf", int8 = in("int8");
  run({"quantize", kTestData + "/goldens/B_train/base_llama", int8, "--type", "int8"});
  const auto sft = [&](const std::string& model, const Words& more, const std::string& out = "refused") {
    return Words{"sft",
                 "--model_name_or_path",
                 model,
                 "--tokenizer_name_or_path",
                 in("words"),
                 "--dataset_name",
                 in("rows.jsonl"),
                 "--max_steps",
                 "1",
                 "--output_dir",
                 in(out),
                 "--disable_tqdm"} +
           more;
  };
  const Words lora = {"--use_peft_lora", "true"};
  run(sft(int8, {"--peft_type", "PROMPT_TUNING", "--use_peft_lora", "true", "--num_virtual_tokens", "2"}, "prompt"));
  fs::create_directories(in("foreign"));
  fs::copy_file(kTestData + "/goldens/B_train/base_llama/config.json", in("foreign/config.json"));
  const auto dense = io::open_safetensors(kTestData + "/goldens/B_train/base_llama/model.safetensors");
  std::vector<std::pair<std::string, at::Tensor>> foreign;
  for (const auto& info : dense->tensors()) {
    const bool packed = info.name.ends_with("_proj.weight");
    foreign.emplace_back(packed ? info.name + "_packed" : info.name, io::read_tensor(*dense, info.name));
  }
  io::write_safetensors(in("foreign/model.safetensors"), foreign);
  const std::vector<std::pair<Words, Words>> cases = {
      {sft(gguf, lora + Words{"--use_4bit_quantization", "true"}),
       {gguf, "'model.layers.0.mlp.down_proj' is packed already (GGUF Q6_K)", "Leave the packing out"}},
      {{"quantize", gguf, in("twice")}, {gguf, "is packed already (GGUF", "name the model that it was made from"}},
      {{"quantize", int8, in("twice")}, {int8, "are packed already", "name the folder of the model"}},
      {sft(int8, lora + Words{"--use_4bit_quantization", "true"}),
       {int8, "packed already, in 8 bits (LLM.int8)", "in 4 bits", "leave the flag out"}},
      {sft(int8, {}), {"do not train"}},
      {{"merge", "--model", int8, "--adapter", in("prompt"), "--output_dir", in("merged")},
       {"PROMPT_TUNING changes no weights", "use the adapter as it is"}},
      {sft(int8, lora + Words{"--max_memory", "1MiB"}),
       {"--max_memory 1MiB: a rank would hold", "packed weights", "No flags make it fit; more ranks"}},
      {sft(in("foreign"), lora),
       {"'model.layers.0.self_attn.q_proj.weight' has no value", in("foreign/model.safetensors"),
        "q_proj.weight_packed in its place", "Name the folder of the model"}}};
  for (const auto& [command, parts] : cases) {
    const auto r = test::run(Words{TESSERA_BINARY} + command);
    EXPECT_NE(r.exit_code, 0) << parts.front();
    for (const auto& part : parts) EXPECT_TRUE(test::contains(r.err, part)) << part << "\n" << r.err;
  }
}

}  // namespace
}  // namespace tessera
