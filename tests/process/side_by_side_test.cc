// Adapters trained side by side: each comes out as from the run that trains it alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/compare.h"
#include "support/sft_job.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::Finished;
using test::kTinyChat;
using test::Words;
using test::operator+;

const Words kCommon = {"--max_seq_length", "64", "--print_model", "false", "--seed", "7", "--max_grad_norm", "0"};

// Methods, targets, batches, dropout, seeds, schedules and lengths differ. "norm" is done before the others, in the
// middle of an epoch; its name says nothing of its weights, which decay.
const Json kAdapters = {{"long",
                         {{"lora_r", 4},
                          {"lora_dropout", 0.2},
                          {"lora_target_modules", "all-linear"},
                          {"learning_rate", 1e-2},
                          {"per_device_train_batch_size", 4},
                          {"max_steps", 8}}},
                        {"norm",
                         {{"use_dora", true},
                          {"lora_r", 8},
                          {"lora_dropout", 0.1},
                          {"lora_target_modules", {"q_proj", "down_proj"}},
                          {"learning_rate", 5e-3},
                          {"weight_decay", 0.5},
                          {"lr_scheduler_type", "cosine"},
                          {"warmup_steps", 2},
                          {"seed", 11},
                          {"splits", "test"},
                          {"neftune_noise_alpha", 3},
                          {"per_device_train_batch_size", 2},
                          {"max_steps", 5}}},
                        {"scaled",
                         {{"peft_type", "IA3"},
                          {"packing", true},
                          {"learning_rate", 2e-2},
                          {"per_device_train_batch_size", 2},
                          {"max_steps", 6}}}};

class SideBySide : public test::SftJob {
 protected:
  SideBySide() : SftJob("side_by_side") {}

  std::string list(const Json& adapters) const {
    const auto file = folder_ + "/adapters.json";
    write_file_atomically(file, adapters.dump());
    return file;
  }
  Finished together(int ranks, const std::string& out, const Json& adapters, const Words& more = {}) const {
    return sft(ranks, "model", out, kCommon + Words{"--adapters", list(adapters)} + more);
  }
  Finished alone(int ranks, const std::string& out, const Json& flags, const Words& more = {}) const {
    Words words = kCommon + Words{"--use_peft_lora", "true"} + more;
    for (const auto& [key, value] : flags.items()) {
      std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (value.is_array()) text = "q_proj,down_proj";
      words.push_back("--" + key + "=" + text);
    }
    return sft(ranks, "model", out, words);
  }
  /// By step, of metrics.jsonl.
  std::map<std::int64_t, double> curve(const std::string& out, const std::string& key) const {
    std::map<std::int64_t, double> values;
    for (const auto& row : rows(out))
      if (row.contains(key)) values[row["step"]] = row[key];
    return values;
  }
  std::string file(const std::string& out, const std::string& name) const {
    return read_file(folder_ + "/" + out + "/" + name);
  }
  std::string weights(const std::string& out) const { return file(out, "adapter_model.safetensors"); }

  /// Losses, rates and weights have the same bits.
  void expect_as_alone(int ranks, const Words& more) const {
    const auto run = together(ranks, "together", kAdapters, more);
    ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
    for (const auto& [name, flags] : kAdapters.items()) {
      const auto single = alone(ranks, name, flags, more);
      ASSERT_EQ(single.exit_code, 0) << single.err;
      EXPECT_EQ(curve("together", name + "_loss"), curve(name, "train_loss_exact")) << name;
      EXPECT_EQ(curve("together", name + "_learning_rate"), curve(name, "learning_rate")) << name;
      EXPECT_EQ(curve("together", name + "_loss").size(), flags["max_steps"].get<std::size_t>()) << name;
      EXPECT_TRUE(weights("together/" + name) == weights(name)) << name;
      EXPECT_EQ(file("together/" + name, "adapter_config.json"), file(name, "adapter_config.json"));
      EXPECT_EQ(file("together/" + name, "tokenizer.json"), file(name, "tokenizer.json"));
    }
  }
};

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunOnOneRank) {
  expect_as_alone(1, {});
}

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunOnTwoRanksWithAccumulation) {
  expect_as_alone(2, {"--gradient_accumulation_steps", "3"});
}

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunOnThreeRanksWithCheckpointing) {
  expect_as_alone(3, {"--gradient_checkpointing", "true"});
}

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunInBf16) {
  expect_as_alone(2, {"--bf16", "true", "--gradient_accumulation_steps", "2"});
}

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunOnABaseOfFourBits) {
  expect_as_alone(2, {"--load_in_4bit", "true", "--bf16", "true"});
}

TEST_F(SideBySide, EachIsTheAdapterOfItsOwnRunOnTwoCopiesOfTwoRanks) {
  launch_flags_ = {"--fsdp_sharding_strategy", "HYBRID_SHARD", "--fsdp_shard_group_size", "2"};
  expect_as_alone(4, {});
}

// The sum of one adapter's squares has another order than alone.
TEST_F(SideBySide, EachIsClippedByItself) {
  const Json adapters = {{"one", {{"lora_r", 4}, {"learning_rate", 1e-2}, {"max_grad_norm", 0.05}}},
                         {"two",
                          {{"lora_r", 8},
                           {"learning_rate", 5e-3},
                           {"optim", "adafactor"},
                           {"max_grad_norm", 0.1},
                           {"lora_target_modules", {"q_proj", "down_proj"}}}}};
  const Words more = {"--max_steps", "4"};
  ASSERT_EQ(together(2, "together", adapters, more).exit_code, 0);
  for (const auto& [name, flags] : adapters.items()) {
    ASSERT_EQ(alone(2, name, flags, more).exit_code, 0);
    const auto ours = curve("together", name + "_grad_norm"), theirs = curve(name, "grad_norm");
    ASSERT_EQ(ours.size(), 4U) << name;
    for (const auto& [step, norm] : theirs) {
      EXPECT_NEAR(ours.at(step), norm, 1e-5 * norm) << name;
      EXPECT_GT(norm, flags["max_grad_norm"].get<double>()) << "nothing is clipped";
    }
    const auto expected = io::open_safetensors(folder_ + "/" + name + "/adapter_model.safetensors");
    const auto found = io::open_safetensors(folder_ + "/together/" + name + "/adapter_model.safetensors");
    for (const auto& info : expected->tensors())
      test::expect_close(io::read_tensor(*found, info.name), io::read_tensor(*expected, info.name), 1e-5, info.name);
  }
}

TEST_F(SideBySide, GoesOnBitForBitFromACheckpoint) {
  const Words more = {"--save_steps", "3"};
  ASSERT_EQ(together(2, "straight", kAdapters, more).exit_code, 0);
  for (const std::string at : {"3", "6"}) {  // "norm" is done at the second
    const auto out = "resumed" + at;
    fs::create_directories(folder_ + "/" + out);
    fs::copy(folder_ + "/straight/checkpoint-" + at, folder_ + "/" + out + "/checkpoint-" + at,
             fs::copy_options::recursive);
    const auto run = together(2, out, kAdapters, more + Words{"--resume_from_checkpoint", "true"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    for (const auto& [name, flags] : kAdapters.items()) {
      EXPECT_TRUE(weights(out + "/" + name) == weights("straight/" + name)) << name << " from " << at;
      const auto after = curve(out, name + "_loss"), before = curve("straight", name + "_loss");
      for (const auto& [step, loss] : after) EXPECT_EQ(loss, before.at(step)) << name << " from " << at;
      EXPECT_EQ(after.empty(), flags["max_steps"] <= std::stoi(at)) << name << " from " << at;
    }
  }
  auto another = kAdapters;
  another["late"] = {{"lora_r", 2}};
  const auto run =
      together(2, "with_another", another, {"--resume_from_checkpoint", folder_ + "/straight/checkpoint-3"});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_SAYS(run.err, "adapters.late");
}

TEST_F(SideBySide, EachIsEvaluatedOnItsOwnRowsAndGoesOnFromItsFolder) {
  const Json two = {{"one", {{"lora_r", 4}, {"learning_rate", 1e-2}}},
                    {"two", {{"lora_r", 4}, {"learning_rate", 1e-3}}}};
  const Words more = {"--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2"};
  ASSERT_EQ(together(2, "first", two, more).exit_code, 0);
  const auto one = curve("first", "eval_one_loss"), other = curve("first", "eval_two_loss"),
             mean = curve("first", "eval_loss");
  ASSERT_EQ(mean.size(), 2U);
  for (const auto& [step, value] : mean) EXPECT_DOUBLE_EQ(value, (one.at(step) + other.at(step)) / 2);
  EXPECT_NE(one.at(4), other.at(4));
  ASSERT_EQ(alone(2, "alone", two["one"], more).exit_code, 0);
  EXPECT_EQ(one, curve("alone", "eval_loss"));
  const Json from = {{"adapter_name_or_path", folder_ + "/first/one"}, {"learning_rate", 1e-2}};
  ASSERT_EQ(together(2, "second", {{"again", from}, {"two", two["two"]}}, more).exit_code, 0);
  ASSERT_EQ(alone(2, "alone_again", from, more).exit_code, 0);
  EXPECT_TRUE(weights("second/again") == weights("alone_again"));
}

TEST_F(SideBySide, SaysWhatCannotBe) {
  const auto refusal = [&](const std::string& text, const Words& more = {}) {
    write_file_atomically(folder_ + "/adapters.yaml", text);
    const auto run = sft(1, "model", "out", kCommon + Words{"--adapters", folder_ + "/adapters.yaml"} + more);
    EXPECT_NE(run.exit_code, 0) << run.out;
    return run.err;
  };
  const auto beside = [&](const std::string& flags, const Words& more = {}) {
    return refusal("a: {lora_r: 2}\nb: {" + flags + "}\n", more);
  };
  EXPECT_SAYS(refusal("a: {lora_r: 2}\na: {lora_r: 4}\n"), "adapters.yaml:2: ");
  EXPECT_SAYS(refusal("checkpoint-2:\n"), "adapters.yaml:1: 'checkpoint-2' cannot be an adapter's name");
  EXPECT_SAYS(refusal("a: 3\n"), "'a' expects the adapter's flags");
  EXPECT_SAYS(refusal("{}\n"), "no adapter is named");
  EXPECT_SAYS(beside("bf16: true"), "adapters.yaml:2: adapter 'b': --bf16 is of the whole run");
  EXPECT_SAYS(beside("gradient_accumulation_steps: 2"),
              "adapter 'b': --gradient_accumulation_steps is of the whole run");
  EXPECT_SAYS(beside("sync_each_batch: true"), "adapter 'b': --sync_each_batch is of the whole run");
  EXPECT_SAYS(beside("lora_rank: 2"), "adapter 'b': unknown flag --lora_rank");
  EXPECT_SAYS(beside("learning_rate: fast"), "adapter 'b': --learning_rate expects");
  EXPECT_SAYS(beside("use_peft_lora: false"), "adapter 'b': --use_peft_lora false");
  EXPECT_SAYS(beside("peft_type: PROMPT_TUNING, num_virtual_tokens: 3"),
              "adapter 'b': PROMPT_TUNING changes what the model reads");
  EXPECT_SAYS(beside("peft_type: ADALORA"), "adapter 'b': AdaLoRA");
  EXPECT_SAYS(beside("peft_type: OFT, coft: true"), "adapter 'b': COFT");
  EXPECT_SAYS(beside("init_lora_weights: pissa"), "adapter 'b': init_lora_weights pissa");
  EXPECT_SAYS(beside("lora_modules_to_save: lm_head"), "adapter 'b': it trains whole");
  EXPECT_SAYS(beside("chat_template_format: chatml"), "adapter 'b': its chat template");
  EXPECT_SAYS(beside("optim: lorafa"), "--optim lorafa does not go with --adapters");
  EXPECT_SAYS(beside("lr_scheduler_type: reduce_lr_on_plateau", {"--eval_steps", "2"}), "does not go with --adapters");
  EXPECT_SAYS(beside("lora_r: 2", {"--fp16", "true"}), "float16 does not go with --adapters");
  EXPECT_SAYS(beside("lora_r: 2", {"--eval_steps", "2", "--early_stopping_patience", "2"}),
              "--early_stopping_patience does not go with --adapters");
  EXPECT_SAYS(beside("lora_r: 2", {"--eval_steps", "2", "--save_steps", "2", "--load_best_model_at_end", "true"}),
              "--load_best_model_at_end does not go with --adapters");
}

}  // namespace
}  // namespace tessera
