// Supervised fine-tuning on two processes: what is written, going on from a checkpoint, and what goes wrong.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "models/gguf_model.h"
#include "support/sft_job.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using test::Finished;
using test::kLora;
using test::kTinyChat;
using test::Words;
using test::operator+;

class Sft : public test::SftJob {
 protected:
  Sft() : SftJob("sft") {}

  Finished train(int ranks, const std::string& out, const Words& flags) const {
    return sft(ranks, "model", out, Words{"--max_seq_length", "128", "--print_model", "false", "--seed", "7"} + flags);
  }
  at::Tensor weights(const std::string& file, const std::string& name) {
    return io::read_tensor(*io::open_safetensors(folder_ + "/" + file), name);
  }
};

/// The flags of PEFT's guide, but for those that name files and sizes.
const Words kDocument = {"--add_special_tokens",
                         "False",
                         "--append_concat_token",
                         "False",
                         "--splits",
                         "train,test",
                         "--num_train_epochs",
                         "1",
                         "--log_level",
                         "info",
                         "--logging_strategy",
                         "steps",
                         "--evaluation_strategy",
                         "epoch",
                         "--save_strategy",
                         "epoch",
                         "--push_to_hub",
                         "--hub_private_repo",
                         "True",
                         "--hub_strategy",
                         "every_save",
                         "--packing",
                         "True",
                         "--learning_rate",
                         "1e-2",
                         "--lr_scheduler_type",
                         "cosine",
                         "--weight_decay",
                         "1e-4",
                         "--warmup_ratio",
                         "0.0",
                         "--max_grad_norm",
                         "1.0",
                         "--per_device_train_batch_size",
                         "2",
                         "--per_device_eval_batch_size",
                         "8",
                         "--gradient_accumulation_steps",
                         "2",
                         "--gradient_checkpointing",
                         "True",
                         "--use_reentrant",
                         "False",
                         "--dataset_text_field",
                         "content",
                         "--use_flash_attn",
                         "True",
                         "--use_peft_lora",
                         "True",
                         "--lora_r",
                         "8",
                         "--lora_alpha",
                         "16",
                         "--lora_dropout",
                         "0.1",
                         "--lora_target_modules",
                         "all-linear"};

TEST_F(Sft, TheDocumentsFlagsTrainAndLeaveAnAdapterThatPeftReads) {
  const Finished r = train(2, "out", kDocument + Words{"--use_4bit_quantization", "False"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "***** Running training *****")) << r.out;
  EXPECT_TRUE(contains(r.out, "'eval_loss': ")) << r.out;
  EXPECT_TRUE(contains(r.out, "nothing is uploaded, HF_HUB_OFFLINE is set. What to upload is in '" + folder_ + "/out'"))
      << r.out;
  EXPECT_TRUE(contains(r.out, "  hf upload out '" + folder_ + "/out' --exclude 'checkpoint-*/*' --private\n")) << r.out;
  EXPECT_TRUE(contains(r.out, "'train_runtime': "));
  const auto all = losses("out");
  ASSERT_GE(all.size(), 4u);
  EXPECT_LT(all.back(), all.front());
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "trainer_state.json"})
    EXPECT_TRUE(fs::exists(folder_ + "/out/" + name)) << name;
  const auto adapter = io::open_safetensors(folder_ + "/out/adapter_model.safetensors");
  EXPECT_NE(adapter->find("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"), nullptr);
  const auto state = json::parse(read_file(folder_ + "/out/trainer_state.json"));
  EXPECT_EQ(state["global_step"], static_cast<std::int64_t>(all.size()));
  EXPECT_TRUE(fs::exists(folder_ + "/out/checkpoint-" + std::to_string(all.size()) + "/trainer_state.json"));
}

TEST_F(Sft, OneTwoAndThreeRanksHaveTheSameLosses) {
  const std::vector<std::string> flags = {"--max_steps",     "4",  "--learning_rate", "5e-3",
                                          "--save_strategy", "no", "--packing"};
  for (const auto& [ranks, batch] : std::vector<std::pair<int, std::string>>{{1, "6"}, {2, "3"}, {3, "2"}}) {
    const Finished r = train(ranks, "out" + std::to_string(ranks),
                             flags + Words{"--per_device_train_batch_size", batch, "--max_seq_length", "64"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  const auto one = losses("out1"), two = losses("out2"), three = losses("out3");
  ASSERT_EQ(one.size(), 4u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 1e-5);
    EXPECT_NEAR(three[i], one[i], 1e-5);
  }
}

TEST_F(Sft, BlocksAreComputedAgainWithoutALauncher) {
  const auto run = [&](const std::string& output, const Words& more) {
    const Finished r =
        test::run(Words{TESSERA_BINARY} + test::sft_words(folder_ + "/model", kTinyChat, folder_, output) +
                  Words{"--logging_steps", "1", "--max_steps", "2", "--save_strategy", "no"} + more);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return losses(output);
  };
  const auto kept = run("kept", {});
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(run("again", {"--gradient_checkpointing", "true"}), kept);
  EXPECT_EQ(
      run("some", {"--activation_checkpointing", "--activation_checkpointing_kwargs", R"({"every_n_layers": 2})"}),
      kept);
}

TEST_F(Sft, DropoutAndNoiseDependOnTheRowsAndNotOnTheRanks) {
  auto config = json::parse(read_file(folder_ + "/model/config.json"));
  config["attention_dropout"] = 0.2;
  write_file_atomically(folder_ + "/model/config.json", config.dump());
  const auto flags = kLora + Words{"--lora_dropout",  "0.3",  "--neftune_noise_alpha", "5", "--max_steps", "3",
                                   "--learning_rate", "1e-2", "--save_strategy",       "no"};
  const auto same_losses = [&](const std::string& name, const std::vector<std::string>& more) {
    const auto run = [&](const std::string& part, int ranks, const std::vector<std::string>& split) {
      const Finished r = train(ranks, name + part, flags + more + split);
      EXPECT_EQ(r.exit_code, 0) << r.err;
      return losses(name + part);
    };
    const auto one = run("1", 1, {"--per_device_train_batch_size", "6"});
    ASSERT_EQ(one.size(), 3u);
    for (const auto& other :
         {run("2", 2, {"--per_device_train_batch_size", "3"}), run("3", 3, {"--per_device_train_batch_size", "2"}),
          run("a", 1, {"--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "3"})}) {
      ASSERT_EQ(other.size(), 3u) << name;
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(other[i], one[i], 1e-5) << name;
    }
    EXPECT_EQ(run("c", 1, {"--per_device_train_batch_size", "6", "--gradient_checkpointing"}), one) << name;
  };
  same_losses("padded", {});
  same_losses("packed", {"--packing", "--max_seq_length", "64"});
  const Finished without =
      train(1, "without",
            kLora + Words{"--max_steps", "3", "--learning_rate", "1e-2", "--per_device_train_batch_size", "6",
                          "--lora_dropout", "0", "--save_strategy", "no"});
  ASSERT_EQ(without.exit_code, 0) << without.err;
  EXPECT_GT(std::abs(losses("without")[0] - losses("padded1")[0]), 1e-3);
}

TEST_F(Sft, EvaluationShowsAnswersBesideWhatWasExpected) {
  const Finished r = train(2, "out",
                           {"--max_steps", "1", "--eval_strategy", "steps", "--eval_steps", "1", "--eval_generate", "3",
                            "--eval_generate_max_new_tokens", "4", "--save_strategy", "no"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, " expected: ")) << r.out;
  json samples;
  for (const auto& row : rows("out"))
    if (row.contains("samples")) samples = row["samples"];
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_TRUE(contains(samples[0]["prompt"], "user\nWhat is a")) << samples[0];
  EXPECT_TRUE(std::string(samples[0]["prompt"]).ends_with("assistant\n")) << samples[0];
  EXPECT_TRUE(contains(samples[0]["completion"], "A ")) << samples[0];
  EXPECT_TRUE(samples[0].contains("generated"));
}

TEST_F(Sft, ARunThatWasStoppedGoesOnBitEqual) {
  const auto flags = kLora + Words{"--max_steps", "6", "--save_steps", "3", "--learning_rate", "1e-2"};
  ASSERT_EQ(train(2, "whole", flags).exit_code, 0);
  ASSERT_EQ(train(2, "parts", flags).exit_code, 0);
  fs::remove_all(folder_ + "/parts/checkpoint-6");
  fs::remove(folder_ + "/parts/adapter_model.safetensors");
  const Finished r = train(2, "parts", flags + Words{"--resume_from_checkpoint", "true"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "Continuing from global step 3")) << r.out;
  const std::string name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
  EXPECT_TRUE(weights("whole/adapter_model.safetensors", name).equal(weights("parts/adapter_model.safetensors", name)));
  const Finished one = train(1, "parts",
                             flags + Words{"--resume_from_checkpoint", folder_ + "/parts/checkpoint-3",
                                           "--per_device_train_batch_size", "16"});
  EXPECT_EQ(one.exit_code, 0) << one.err;  // at another number of ranks
}

TEST_F(Sft, OptimizersThatAverageOrProjectGoOnBitEqual) {
  const auto flags =
      Words{"--max_steps", "4", "--save_steps", "2", "--learning_rate", "1e-2", "--lr_scheduler_type", "constant"};
  const std::vector<std::pair<std::string, Words>> optimizers = {
      {"schedule_free_adamw", {"--eval_strategy", "steps", "--eval_steps", "3"}},
      {"apollo_adamw", {"--optim_target_modules", "all-linear", "--optim_args", "rank=4,update_proj_gap=2"}}};
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  for (const auto& [optim, more] : optimizers) {
    const auto words = flags + Words{"--optim", optim} + more;
    const Finished whole = train(2, optim, words);
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const auto result = weights(optim + "/model.safetensors", name);
    EXPECT_TRUE(result.equal(weights(optim + "/checkpoint-4/model.safetensors", name))) << optim;
    fs::remove(folder_ + "/" + optim + "/model.safetensors");
    const Finished on =
        train(2, optim, words + Words{"--resume_from_checkpoint", folder_ + "/" + optim + "/checkpoint-2"});
    ASSERT_EQ(on.exit_code, 0) << on.err;
    EXPECT_TRUE(result.equal(weights(optim + "/model.safetensors", name))) << optim;
  }
}

TEST_F(Sft, APagedOptimizerWithoutAFolderSaysThatItsStatesStayInMemory) {
  const auto flags = Words{"--max_steps", "1", "--save_strategy", "no", "--optim", "paged_adamw_8bit"};
  const Finished r = train(1, "paged", flags);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "--optim paged_adamw_8bit: its states stay in memory")) << r.out;
}

TEST_F(Sft, TheBestCheckpointIsLoadedAtTheEndAndOldOnesAreRemoved) {
  const Finished r = train(2, "out",
                           {"--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1",
                            "--load_best_model_at_end", "--save_total_limit", "2", "--learning_rate", "5e-3"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "Loading best model from ")) << r.out;
  std::int64_t checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(folder_ + "/out"))
    checkpoints += entry.path().filename().string().starts_with("checkpoint-") ? 1 : 0;
  EXPECT_EQ(checkpoints, 2);
}

TEST_F(Sft, ChatmlAddsTokensAndRowsToTheTables) {
  const Finished r = train(2, "out", {"--max_steps", "2", "--chat_template_format", "chatml", "--save_strategy", "no"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto table = weights("out/model.safetensors", "model.embed_tokens.weight");
  EXPECT_EQ(table.size(0), 264);  // 259 tokens and 5 new ones
  EXPECT_EQ(json::parse(read_file(folder_ + "/out/config.json"))["vocab_size"], 264);
}

TEST_F(Sft, AnAdapterForNewTokensBringsTheirRows) {
  const Finished r = train(2, "out", kLora + Words{"--max_steps", "1", "--chat_template_format", "chatml"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(weights("out/adapter_model.safetensors", "base_model.model.model.embed_tokens.weight").size(0), 264);
}

TEST_F(Sft, AnAdapterOfAGgufModelMergesIntoAFolder) {
  fs::copy_file(std::string(TESSERA_TEST_DATA) + "/gguf/llama.gguf", folder_ + "/llama.gguf");
  const auto config = json{{"r", 2},
                           {"lora_alpha", 4},
                           {"target_modules", {"q_proj"}},
                           {"peft_type", "LORA"},
                           {"task_type", "CAUSAL_LM"},
                           {"bias", "none"}};
  fs::create_directories(folder_ + "/adapter");
  write_file_atomically(folder_ + "/adapter/adapter_config.json", config.dump());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto base = models::open_model_weights(folder_ + "/llama.gguf");
  for (const auto& info : base->tensors()) {
    if (!info.name.ends_with("q_proj.weight")) continue;
    const auto name = "base_model.model." + info.name.substr(0, info.name.size() - 7);
    tensors.emplace_back(name + ".lora_A.weight", at::ones({2, info.shape[1]}));
    tensors.emplace_back(name + ".lora_B.weight", at::ones({info.shape[0], 2}));
  }
  ASSERT_FALSE(tensors.empty());
  io::write_safetensors(folder_ + "/adapter/adapter_model.safetensors", tensors);
  std::vector<std::string> merge = {TESSERA_BINARY,       "merge",        "--adapter",
                                    folder_ + "/adapter", "--output_dir", folder_ + "/merged"};
  EXPECT_TRUE(contains(test::run(merge).err, "does not say which model it is for"));
  const Finished r = test::run(merge + Words{"--model", folder_ + "/llama.gguf"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(json::parse(read_file(folder_ + "/merged/config.json"))["model_type"], "llama");
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto before = io::read_tensor(*base, name).to(at::kFloat);
  EXPECT_TRUE(at::allclose(weights("merged/model.safetensors", name).to(at::kFloat), before + 4.0, 1e-3, 1e-3));
}

TEST_F(Sft, FoldersMayHaveNamesThatAreNotUtf8) {
  const std::string latin1 = "caf\xe9";  // a name of before UTF-8
  fs::create_directory(folder_ + "/" + latin1);
  fs::rename(folder_ + "/model", folder_ + "/" + latin1 + "/model");
  const auto train_there = [&](int steps) {
    return sft(2, latin1 + "/model", latin1 + "/out",
               kLora + Words{"--max_steps", std::to_string(steps), "--save_steps", "2", "--resume_from_checkpoint",
                             steps == 2 ? "false" : "true", "--profile", folder_ + "/" + latin1 + "/profile.json"});
  };
  for (const int steps : {2, 4}) {
    const auto done = train_there(steps);
    ASSERT_EQ(done.exit_code, 0) << done.err;
  }
  EXPECT_EQ(losses(latin1 + "/out").size(), 4u);
  const std::string out = folder_ + "/" + latin1 + "/out";
  for (const Words& words :
       {Words{"status", out}, Words{"inspect", out, "--json"}, Words{"report", out, "--output", out + "/page.html"},
        Words{"merge", "--model_name_or_path", folder_ + "/" + latin1 + "/model", "--adapter_name_or_path", out,
              "--output_dir", out + "/merged"}}) {
    const auto done = test::run(Words{TESSERA_BINARY} + words);
    EXPECT_EQ(done.exit_code, 0) << words[0] << ": " << done.err;
  }
}

TEST_F(Sft, BadInputIsNamed) {
  const auto expect = [&](const std::vector<std::string>& flags, const std::string& part) {
    const Finished r = train(1, "bad", flags);
    EXPECT_NE(r.exit_code, 0) << part;
    EXPECT_TRUE(contains(r.err, part)) << part << "\n" << r.err;
  };
  const Finished refused = train(
      2, "bad",
      kDocument + Words{"--use_8bit_quantization", "True", "--use_4bit_quantization", "True", "--learnin_rate", "1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(contains(refused.err, "tessera error: 2 problems with the command line:\n")) << refused.err;
  EXPECT_FALSE(contains(refused.err, "tessera error: [rank 1]: tessera error")) << refused.err;
  expect({"--use_8bit_quantization", "True"}, "train an adapter over them with --use_peft_lora");
  expect({"--use_4bit_quantization", "True"}, "train an adapter over them with --use_peft_lora");
  expect({"--packin", "True"}, "--packing");
  expect({"--eval_strategy", "epoch", "--splits", "train"}, "eval_strategy");
  expect({"--load_best_model_at_end"}, "eval_strategy");
  expect(kLora + Words{"--lora_target_modules", "query"}, "q_proj");
  expect({"--resume_from_checkpoint", "true"}, "no complete checkpoint");
  const auto with_rate = [](const std::string& rate) {
    return Words{"--max_steps", "3", "--learning_rate", rate, "--max_grad_norm", "0", "--save_strategy", "no"};
  };
  expect(with_rate("1e30"), "step 2: the gradient has NaN in 'model.");
  expect(with_rate("1e38"), "step 2: the loss is not finite on rank 0: there is infinity in 'model.");
  expect({"--bf16", "True", "--fp16", "True"}, "exclude each other");
  expect({"--use_cpu", "--device", "cuda"}, "--use_cpu and --device cuda exclude each other");
  expect({"--load_best_model_at_end", "--eval_strategy", "epoch", "--save_strategy", "steps"}, "to be the same");
  auto config = json::parse(read_file(folder_ + "/model/config.json"));
  config["vocab_size"] = 100;
  write_file_atomically(folder_ + "/model/config.json", config.dump());
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", folder_ + "/model", folder_ + "/small"}).exit_code, 0);
  expect({"--model_name_or_path", folder_ + "/small"}, "has 259 tokens, the model's table 100 rows");
}

TEST_F(Sft, ABudgetOfMemoryIsCheckedBeforeAndDuringTheRun) {
  const Words flags = Words{"--max_steps", "3"} + kLora;
  const auto refused = train(2, "refused", flags + Words{"--max_memory", "50MB"});
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_TRUE(contains(refused.err, "--max_memory 50MB: a rank would hold")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "the program 91.0 MiB")) << refused.err;
  EXPECT_FALSE(fs::exists(folder_ + "/refused/adapter_model.safetensors"));

  // The rows are not planned: here they are more than the tiny model and the program, of whose files a rank counts less
  // while other processes use them, too.
  std::filesystem::create_directories(folder_ + "/many");
  {
    const std::string rows = read_file(test::kTestData + "/tiny_chat/train.jsonl");
    std::ofstream many(folder_ + "/many/train.jsonl");
    for (int i = 0; i < 8000; ++i) many << rows;
  }
  const Words many = {"--dataset_name", folder_ + "/many", "--splits", "train"};
  const auto roomy = train(1, "roomy", flags + many + Words{"--max_memory", "20GiB"});
  EXPECT_EQ(roomy.exit_code, 0) << roomy.err;
  EXPECT_TRUE(contains(roomy.out, "memory: planned ")) << roomy.out;
  std::istringstream rows(read_file(folder_ + "/roomy/metrics.jsonl"));
  double planned = 0, measured = 0;
  for (std::string line; std::getline(rows, line);) {
    const auto row = nlohmann::json::parse(line);
    planned = row.value("planned_memory_mib", planned);
    measured = row.value("measured_memory_mib", measured);
  }

  ASSERT_GT(measured, planned + 20);
  const std::string between = std::to_string(static_cast<int>((planned + measured) / 2)) + "MiB";
  const auto exceeded = train(1, "exceeded", kLora + many + Words{"--max_steps", "500", "--max_memory", between});
  EXPECT_EQ(exceeded.exit_code, 1) << exceeded.out << exceeded.err;
  EXPECT_TRUE(contains(exceeded.err, "more than the " + between + " of --max_memory; planned were")) << exceeded.err;
  const auto is_checkpoint = [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("checkpoint-");
  };
  EXPECT_EQ(std::count_if(fs::directory_iterator(folder_ + "/exceeded"), fs::directory_iterator(), is_checkpoint), 1)
      << exceeded.out;
}

}  // namespace
}  // namespace tessera
