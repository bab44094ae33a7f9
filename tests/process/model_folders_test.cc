// Model folders on every way out: what travels with the weights, what their files say, and what stands for a model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/file.h"
#include "support/program.h"
#include "support/sft_job.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::kDemo;
using test::kLora;
using test::kTestData;
using test::kTinyChat;
using test::Words;
using test::operator+;

class ModelFolders : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return temporary_.path() + "/" + name; }

  static Finished tessera(const Words& words) { return test::run(Words{TESSERA_BINARY} + words); }
  static std::string succeeds(const Words& words) {
    const Finished r = tessera(words);
    EXPECT_EQ(r.exit_code, 0) << words[0] << "\n" << r.err;
    return r.out;
  }
  static std::string fails(const Words& words) {
    const Finished r = tessera(words);
    EXPECT_NE(r.exit_code, 0) << words[0] << "\n" << r.out;
    return r.err;
  }

  /// A model with random weights made from `from`, where `change` edits config.json before.
  template <class Change>
  std::string make_model(const std::string& name, const std::string& from, const Change& change) {
    fs::copy(from, at(name + "_from"));
    auto config = json::parse(read_file(at(name + "_from/config.json")));
    change(config);
    write(name + "_from/config.json", config.dump());
    succeeds({"init-model", at(name + "_from"), at(name)});
    return at(name);
  }
  std::string make_model(const std::string& name, const std::string& from) {
    return make_model(name, from, [](json&) {});
  }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(at(name)).parent_path());
    write_file_atomically(at(name), text);
  }

  void sft(const std::string& model, const std::string& out, const Words& flags) {
    succeeds(test::sft_words(model, kTinyChat, temporary_.path(), out) +
             Words{"--max_seq_length", "64", "--per_device_train_batch_size", "2", "--print_model", "false",
                   "--logging_strategy", "no"} +
             flags);
  }
  const Words one_step_ = {"--max_steps", "1", "--save_strategy", "steps", "--save_steps", "1"};

  void seq2seq(const std::string& model, const std::string& out, const Words& flags) {
    succeeds(Words{"seq2seq", "--model_name_or_path", model, "--output_dir", at(out), "--dataset_path",
                   kDemo + "data/Sentences_demo.txt", "--max_eval_steps", "1", "--print_model", "false",
                   "--disable_tqdm"} +
             one_step_ + flags);
  }

  std::string rendered(const std::string& folder) const {
    return succeeds({"render", "--tokenizer", folder, "--input", kTinyChat + "/test.jsonl"});
  }

  static std::set<std::string> names(const std::string& folder) {
    std::set<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      out.insert(fs::relative(entry.path(), folder).string());
    return out;
  }
  static void expect_files(const std::string& folder, const Words& there, const Words& not_there = {}) {
    const auto found = names(folder);
    for (const auto& name : there) EXPECT_TRUE(found.contains(name)) << folder << " lacks " << name;
    for (const auto& name : not_there) EXPECT_FALSE(found.contains(name)) << folder << " has " << name;
  }

  static std::string said_dtype(const std::string& folder) {
    const auto config = json::parse(read_file(folder + "/config.json"));
    return config.value("dtype", config.value("torch_dtype", ""));
  }
  static std::string written_dtype(const std::string& file) {
    std::set<at::ScalarType> dtypes;
    const auto source = io::open_weights(file);
    for (const auto& info : source->tensors()) dtypes.insert(info.dtype);
    EXPECT_EQ(dtypes.size(), 1u) << file;
    return *dtypes.begin() == at::kFloat ? "float32" : *dtypes.begin() == at::kHalf ? "float16" : "bfloat16";
  }

  const test::TempFolder temporary_{"model_folders"};
};

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A file with some of its names or tensors changed by `change`; without those whose name becomes empty.
template <class Change>
void rewrite(const std::string& file, const Change& change) {
  Tensors tensors;
  {
    const auto source = io::open_weights(file);
    for (const auto& info : source->tensors()) {
      tensors.emplace_back(info.name, io::read_tensor(*source, info.name).clone());
      change(tensors.back().first, tensors.back().second);
      if (tensors.back().first.empty()) tensors.pop_back();
    }
  }
  fs::remove(file);
  io::write_safetensors(file, tensors);
}

const char* const kTemplate = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}";

/// What other programs leave beside a tokenizer.
const Words kTravels = {"tokenizer.json",   "tokenizer_config.json",    "generation_config.json",
                        "special.tiktoken", "preprocessor_config.json", "LICENSE",
                        "modeling_own.py"};
const Words kStaysBehind = {"README.md", "train.jsonl", "trainer_state.json", "run.json", "training_args.bin"};

TEST_F(ModelFolders, WhatLiesBesideTheWeightsTravelsOnEveryWay) {
  for (const auto& name : kTravels + kStaysBehind) {
    if (!name.starts_with("tokenizer")) write("base_from/" + name, "{}");
  }
  write("base_from/chat_template.jinja", kTemplate);
  write("base_from/additional_chat_templates/short.jinja", kTemplate);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(kTinyChat + "/" + name, at("base_from/") + name);
  const std::string base = at("base");
  succeeds({"init-model", at("base_from"), base});
  const Words templates = {"chat_template.jinja", "additional_chat_templates/short.jinja"};
  expect_files(base, kTravels + templates, kStaysBehind);

  sft(base, "adapter", kLora + one_step_);
  expect_files(at("adapter"), {"tokenizer.json", "special.tiktoken", "preprocessor_config.json"},
               {"config.json", "generation_config.json", "README.md"});
  succeeds({"merge", "--adapter", at("adapter"), "--output_dir", at("merged")});
  succeeds({"export", at("adapter"), at("exported_adapter")});
  succeeds({"export", at("adapter/checkpoint-1"), at("exported_merged"), "--merge"});
  succeeds({"export", base, at("exported")});
  fs::create_directories(at("bare"));  // an adapter alone takes its base's tokenizer
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    fs::copy_file(at("adapter/") + name, at("bare/") + name);
  succeeds({"merge", "--adapter", at("bare"), "--output_dir", at("merged_bare")});
  for (const char* out : {"merged", "exported_merged", "exported", "merged_bare"}) {
    expect_files(at(out), kTravels, kStaysBehind);
    const auto answer = succeeds({"generate", "--model", at(out), "--message", "Hi", "--max_new_tokens", "4"});
    EXPECT_FALSE(answer.empty()) << out;
    EXPECT_EQ(rendered(at(out)), rendered(base)) << out;
  }
  expect_files(at("exported_adapter"), {"tokenizer.json", "special.tiktoken"}, {"config.json"});
  expect_files(at("exported"), templates);
  expect_files(at("merged_bare"), templates);
}

TEST_F(ModelFolders, AFullyTrainedModelAndItsCheckpointsTakeItAlong) {
  const std::string llama = make_model("llama", kTinyChat), t5 = make_model("t5", kDemo + "model");
  for (const std::string model : {"llama", "t5"}) {
    write(model + "/chat_template.jinja", kTemplate);
    write(model + "/generation_config.json", R"({"max_new_tokens": 3})");
  }
  const Words kept = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"};
  sft(llama, "sft", one_step_);
  seq2seq(t5, "seq2seq", {"--use_peft_lora", "False"});
  for (const char* out : {"sft", "sft/checkpoint-1", "seq2seq", "seq2seq/checkpoint-1"}) {
    expect_files(at(out), kept);
    EXPECT_NE(read_file(at(out) + "/tokenizer_config.json").find("m['content']"), std::string::npos) << out;
  }
  fs::create_directories(at("words"));  // another tokenizer than the model's folder has
  for (const auto& entry : fs::directory_iterator(t5)) {
    const std::string name = entry.path().filename().string();
    if (name.find("token") != std::string::npos || name == "spiece.model")
      fs::copy_file(entry.path(), at("words") / entry.path().filename());
  }
  write("words/own.vocab", "other");
  write("t5/own.codes", "base");
  seq2seq(t5, "adapter", {"--tokenizer_name_or_path", at("words")});
  succeeds({"summarize",
            "--model_name",
            t5,
            "--data_dir",
            kTestData + "/wikihow",
            "--train_rows",
            "4",
            "--val_rows",
            "4",
            "--batch_size",
            "4",
            "--epochs",
            "1",
            "--max_source_length",
            "32",
            "--max_target_length",
            "8",
            "--disable_tqdm",
            "--output_dir",
            at("summaries"),
            "--tokenizer_name_or_path",
            at("words")});
  expect_files(at("adapter"), {"tokenizer.json", "own.vocab"}, {"config.json", "own.codes"});
  int models = 0;
  for (const auto& entry : fs::directory_iterator(at("summaries"))) {
    if (!entry.is_directory() || !entry.path().filename().string().starts_with("T5-model")) continue;
    ++models;
    expect_files(entry.path().string(), kept + Words{"own.vocab"}, {"own.codes"});
  }
  EXPECT_GE(models, 1);
}

TEST_F(ModelFolders, AMergedModelSpeaksAsTheAdapterWasTaught) {
  const std::string base = make_model("base", kTinyChat);
  auto settings = json::parse(read_file(base + "/tokenizer_config.json"));
  settings.erase("chat_template");
  write("base/tokenizer_config.json", settings.dump());
  EXPECT_NE(fails({"generate", "--model", base, "--message", "Hi"}).find("no chat template"), std::string::npos);
  // zephyr: a template, and tokens for which the tables grow.
  sft(base, "adapter",
      kLora + Words{"--chat_template_format", "zephyr", "--max_steps", "30", "--learning_rate", "2e-2",
                    "--save_strategy", "no"});
  succeeds({"merge", "--adapter", at("adapter"), "--output_dir", at("merged")});
  const auto rows = json::parse(read_file(at("merged/config.json")))["vocab_size"].get<std::int64_t>();
  EXPECT_GT(rows, json::parse(read_file(base + "/config.json"))["vocab_size"].get<std::int64_t>());
  const Words question = {"--message", "What is a cat?", "--max_new_tokens", "8"};
  const auto answer = succeeds(Words{"generate", "--model", at("merged")} + question);
  EXPECT_EQ(answer, succeeds(Words{"generate", "--model", base, "--adapter", at("adapter")} + question));
  EXPECT_EQ(answer, succeeds(Words{"generate", "--model", at("adapter")} + question));
  // Trained on, it keeps what it knows.
  sft(base, "second", Words{"--use_peft_lora", "True", "--adapter_name_or_path", at("adapter")} + one_step_);
  EXPECT_EQ(rendered(at("second")), rendered(at("adapter")));
}

TEST_F(ModelFolders, WhatIsWrittenAndWhatIsSaidHaveOneDtype) {
  const auto expect = [&](const std::string& name, const std::string& dtype) {
    EXPECT_EQ(said_dtype(at(name)), dtype) << name;
    EXPECT_EQ(written_dtype(at(name)), dtype) << name;
  };
  const std::string base = make_model("base", kTinyChat, [](json& config) { config["torch_dtype"] = "bfloat16"; });
  expect("base", "bfloat16");
  succeeds({"init-model", base, at("half"), "--dtype", "float16"});
  expect("half", "float16");
  sft(base, "full", one_step_);  // as transformers, which trains and saves in float32
  expect("full", "float32");
  expect("full/checkpoint-1", "float32");
  sft(base, "narrow", one_step_ + Words{"--save_dtype", "bfloat16"});
  expect("narrow", "bfloat16");
  expect("narrow/checkpoint-1", "bfloat16");
  const std::string weight = "model.norm.weight";
  const auto value = [&](const std::string& name) { return io::read_tensor(*io::open_weights(at(name)), weight); };
  EXPECT_TRUE(at::equal(value("narrow"), value("full").to(at::kBFloat16)));
  sft(base, "more",
      Words{"--resume_from_checkpoint", "true"} + Words{"--output_dir", at("narrow"), "--max_steps", "2"});
  expect("narrow", "float32");

  sft(base, "adapter", kLora + one_step_);
  for (const Words& flags : {Words{"auto", "bfloat16"}, Words{"float32", "float32"}, Words{"float16", "float16"}}) {
    succeeds({"merge", "--adapter", at("adapter"), "--output_dir", at("merged_" + flags[0]), "--dtype", flags[0]});
    succeeds({"export", at("adapter"), at("exported_" + flags[0]), "--merge", "--dtype", flags[0]});
    succeeds({"export", at("full"), at("whole_" + flags[0]), "--model", base, "--dtype", flags[0]});
    for (const char* name : {"merged_", "exported_", "whole_"}) expect(name + flags[0], flags[1]);
  }
  succeeds({"export", at("adapter"), at("narrow_adapter"), "--dtype", "bfloat16"});
  EXPECT_EQ(written_dtype(at("narrow_adapter/adapter_model.safetensors")), "bfloat16");
  rewrite(at("full/model.safetensors"), [&](const std::string& name, at::Tensor& tensor) {
    if (name == weight) tensor.fill_(1e5);
  });
  const auto refusal = fails({"export", at("full"), at("too_large"), "--dtype", "float16"});
  EXPECT_NE(refusal.find(weight), std::string::npos) << refusal;
}

TEST_F(ModelFolders, AnAdapterStandsForItsModel) {
  const std::string base = make_model("base", kTinyChat);
  sft(base, "adapter", kLora + Words{"--max_steps", "20", "--learning_rate", "2e-2", "--save_strategy", "no"});
  const Words question = {"--message", "What is a cat?", "--max_new_tokens", "8"};
  const auto answer = succeeds(Words{"generate", "--model", at("adapter")} + question);
  EXPECT_EQ(answer, succeeds(Words{"generate", "--model", base, "--adapter", at("adapter")} + question));
  EXPECT_NE(answer, succeeds(Words{"generate", "--model", base} + question));
  EXPECT_NE(fails(Words{"generate", "--model", at("adapter"), "--adapter", at("adapter")} + question).find("adapter"),
            std::string::npos);
  const auto estimated = succeeds({"estimate", at("adapter")}), of_base = succeeds({"estimate", base});
  EXPECT_NE(estimated.find("is an adapter of '" + base + "'"), std::string::npos) << estimated;
  EXPECT_NE(estimated.find(of_base.substr(of_base.find("parameters;"), 40)), std::string::npos) << estimated;
  EXPECT_NE(succeeds({"inspect", at("adapter")}).find("base_model: " + base), std::string::npos);
  EXPECT_NE(fails({"sft", "--model_name_or_path", at("adapter"), "--dataset_name", kTinyChat, "--output_dir", at("x")})
                .find("--adapter_name_or_path"),
            std::string::npos);

  // PEFT's own adapter, beside logits of the reference.
  const std::string run = kTestData + "/goldens/B_train/t5_lora_qv", t5 = kTestData + "/goldens/B_train/base_t5";
  auto config = json::parse(read_file(run + "/adapter_final/adapter_config.json"));
  config["base_model_name_or_path"] = t5;
  write("peft/adapter_config.json", config.dump());
  fs::copy_file(run + "/adapter_final/adapter_model.safetensors", at("peft/adapter_model.safetensors"));
  const auto batches = io::open_safetensors(t5 + "/batches.safetensors");
  Tensors io_tensors = {{"logits", io::read_tensor(*io::open_safetensors(run + "/final_logits.safetensors"),
                                                   "logits_adapter_final_batch0")}};
  for (const char* name : {"input_ids", "attention_mask", "labels"})
    io_tensors.emplace_back(name, io::read_tensor(*batches, std::string("step0.") + name));
  io::write_safetensors(at("peft/io.safetensors"), io_tensors);
  EXPECT_NE(succeeds({"verify", at("peft"), "--logits_tolerance", "1e-4"}).find("verified"), std::string::npos);
}

TEST_F(ModelFolders, SizesThatTheWeightsDoNotHaveAreNamedBeforeMemoryIsTaken) {
  const std::string base = make_model("base", kTinyChat);
  const auto good = json::parse(read_file(base + "/config.json"));
  const auto refusal = [&](const char* key, std::int64_t value, const Words& command) {
    auto config = good;
    config[key] = value;
    write("base/config.json", config.dump());
    const auto message = fails(command);
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(value)), std::string::npos) << message;
    return message;
  };
  const Words generate = {"generate", "--model", base, "--prompt", "A", "--max_new_tokens", "2"};
  const Words sharded = Words{"launch", "--cpu", "--num_processes", "2"} + generate;
  for (const auto& command : {generate, sharded}) {
    refusal("num_hidden_layers", 1000000000, command);
    refusal("hidden_size", std::int64_t{1} << 40, command);
    EXPECT_NE(refusal("num_hidden_layers", 3, command).find("model.layers.2."), std::string::npos);
    EXPECT_NE(refusal("num_hidden_layers", 1, command).find("model.layers.1."), std::string::npos);
    EXPECT_NE(refusal("hidden_size", 96, command).find("[260, 48]"), std::string::npos);
    refusal("intermediate_size", 200, command);
    refusal("vocab_size", 512, command);
  }
  refusal("num_attention_heads", 8, {"verify", base});
  auto config = good;
  config["hidden_size"] = config["intermediate_size"] = 1 << 30;
  write("base/config.json", config.dump());
  EXPECT_NE(fails({"init-model", base, at("new")}).find("GiB"), std::string::npos);
}

TEST_F(ModelFolders, TiedTensorsAreKnownUnderAnyOfTheirNames) {
  const std::string goldens = kTestData + "/goldens/A_models/";
  for (const auto& [golden, name, other] : {std::tuple{"t5_v1_0", "shared.weight", "encoder.embed_tokens.weight"},
                                            std::tuple{"t5_v1_0", "shared.weight", "decoder.embed_tokens.weight"},
                                            std::tuple{"t5_v1_0", "shared.weight", "lm_head.weight"},
                                            std::tuple{"gpt2", "transformer.wte.weight", "lm_head.weight"},
                                            std::tuple{"gemma2", "model.embed_tokens.weight", "lm_head.weight"}}) {
    const std::string folder = std::string("tied_") + golden + "_" + other;
    fs::copy(goldens + golden, at(folder), fs::copy_options::recursive);
    rewrite(at(folder) + "/model.safetensors", [&, &from = name, &to = other](std::string& known, at::Tensor&) {
      if (known == from) known = to;
    });
    const auto counted = [](const std::string& model) {
      const auto text = succeeds({"estimate", model});
      return text.substr(0, text.find(" parameters;")).substr(text.rfind('\n', text.find(" parameters;")));
    };
    EXPECT_EQ(counted(at(folder)), counted(goldens + golden));
    for (const auto& words : {Words{"verify", at(folder)}, Words{"verify", at(folder), "--sharded"}}) succeeds(words);
    rewrite(at(folder) + "/io.safetensors", [&, &from = name, &to = other](std::string& known, at::Tensor&) {
      if (known == std::string("grad.") + from) known = std::string("grad.") + to;
    });
    succeeds({"verify", at(folder)});
  }
  // An adapter that keeps the grown table under its head's name alone.
  const std::string base = make_model("base", kTinyChat);
  sft(base, "adapter", kLora + Words{"--chat_template_format", "zephyr"} + one_step_);
  const Words question = {"--prompt", "A pear", "--max_new_tokens", "6"};
  const auto answer = succeeds(Words{"generate", "--model", at("adapter")} + question);
  int removed = 0;
  rewrite(at("adapter/adapter_model.safetensors"), [&](std::string& name, at::Tensor&) {
    if (name != "base_model.model.model.embed_tokens.weight") return;
    name.clear();
    ++removed;
  });
  ASSERT_EQ(removed, 1);
  EXPECT_EQ(succeeds(Words{"generate", "--model", at("adapter")} + question), answer);
}

TEST_F(ModelFolders, AHeadThatOnlyTheWeightsOfANewerT5TellIsUsed) {
  // t5_v1_1 has a head of its own; transformers 5 writes of every T5 that it is tied.
  fs::copy(kTestData + "/goldens/A_models/t5_v1_1", at("t5"), fs::copy_options::recursive);
  auto config = json::parse(read_file(at("t5/config.json")));
  ASSERT_EQ(config["tie_word_embeddings"], false);
  config["tie_word_embeddings"] = true;
  config["scale_decoder_outputs"] = false;
  write("t5/config.json", config.dump());
  succeeds({"verify", at("t5")});
  succeeds({"verify", at("t5"), "--sharded"});
}

TEST_F(ModelFolders, ScoresThatAreNotFiniteAreAnErrorInEveryDecoding) {
  const std::string llama = make_model("llama", kTinyChat), t5 = make_model("t5", kDemo + "model");
  const auto spoil = [](const std::string& folder, const std::string& weight, double value) {
    rewrite(folder + "/model.safetensors", [&](const std::string& name, at::Tensor& tensor) {
      if (name == weight) tensor.fill_(value);
    });
  };
  spoil(llama, "model.norm.weight", std::numeric_limits<double>::quiet_NaN());
  spoil(t5, "decoder.final_layer_norm.weight", std::numeric_limits<double>::infinity());
  write("prompts.jsonl", "\"a\"\n\"b\"\n\"c\"\n");
  for (const auto& model : {llama, t5}) {
    for (const Words& decoding : {Words{}, Words{"--do_sample", "true", "--seed", "3"}, Words{"--num_beams", "2"}}) {
      const Words flags = {"generate", "--model", model, "--max_new_tokens", "3"};
      const auto message = fails(flags + Words{"--prompt", "A"} + decoding);
      EXPECT_NE(message.find("new token 1 of prompt 1"), std::string::npos) << message;
      EXPECT_NE(message.find("not finite"), std::string::npos) << message;
    }
  }
  const auto message = fails({"generate", "--model", llama, "--input_file", at("prompts.jsonl"), "--batch_size", "2"});
  EXPECT_NE(message.find("prompt 1"), std::string::npos) << message;
}

TEST_F(ModelFolders, AnUntiedMaskedHeadsBiasIsWrittenUnderBothNames) {
  const json config = {{"model_type", "bert"},        {"architectures", {"BertForMaskedLM"}},
                       {"vocab_size", 300},           {"hidden_size", 32},
                       {"num_hidden_layers", 1},      {"num_attention_heads", 2},
                       {"intermediate_size", 64},     {"max_position_embeddings", 32},
                       {"tie_word_embeddings", false}};
  fs::create_directories(at("from"));
  write("from/config.json", config.dump());
  succeeds({"init-model", at("from"), at("made")});
  const std::string of_head = "cls.predictions.bias", of_matrix = "cls.predictions.decoder.bias";
  const auto made = io::open_weights(at("made"));
  EXPECT_EQ(read_tensor(*made, of_head).equal(read_tensor(*made, of_matrix)), true);
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // as transformers 4 writes it: the head's alone
  for (const auto& info : made->tensors())
    if (info.name != of_matrix)
      tensors.emplace_back(info.name, info.name == of_head ? at::arange(300.0) : read_tensor(*made, info.name));
  io::write_safetensors(at("made/model.safetensors"), tensors);
  for (const Words& form : {Words{}, Words{"--type", "nf4"}}) {
    const std::string to = at(form.empty() ? "dense" : "packed");
    succeeds(Words{"export", at("made"), to, "--dtype", "float32"} + form);
    const auto written = io::open_weights(to);
    for (const auto& name : {of_head, of_matrix})
      EXPECT_TRUE(read_tensor(*written, name).equal(at::arange(300.0))) << name << " in " << to;
  }
}

}  // namespace
}  // namespace tessera
