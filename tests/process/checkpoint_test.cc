// Checkpoints of real runs: killed at any moment, gone on with, inspected, exported, written for Accelerate.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "support/program.h"
#include "support/ranks.h"
#include "support/sft_job.h"
#include "support/subprocess.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::operator+;

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "checkpoints_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ASSERT_EQ(tessera({"init-model", data(), folder_ + "/model"}).exit_code, 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static const std::string& data() { return test::kTinyChat; }
  static Finished tessera(std::vector<std::string> words, const test::Variables& environment = {}) {
    words.insert(words.begin(), TESSERA_BINARY);
    return test::run(words, environment);
  }
  std::vector<std::string> command(int ranks, const std::string& out, const std::vector<std::string>& flags) const {
    return test::Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)} +
           test::sft_words(folder_ + "/model", data(), folder_, out) +
           test::Words{"--max_seq_length", "64", "--print_model", "false", "--learning_rate", "1e-2"} + flags;
  }
  Finished train(int ranks, const std::string& out, const std::vector<std::string>& flags,
                 const test::Variables& environment = {}) const {
    return test::run(command(ranks, out, flags), environment);
  }
  bool same_weights(const std::string& a, const std::string& b, const std::string& file = "model.safetensors") const {
    return read_file(folder_ + "/" + a + "/" + file) == read_file(folder_ + "/" + b + "/" + file);
  }
  double distance(const std::string& a, const std::string& b) const {
    const auto x = io::open_weights(folder_ + "/" + a), y = io::open_weights(folder_ + "/" + b);
    double worst = 0;
    for (const auto& info : x->tensors())
      worst =
          std::max(worst, (io::read_tensor(*x, info.name) - io::read_tensor(*y, info.name)).abs().max().item<double>());
    return worst;
  }

  std::string folder_;
};

// The short form of scripts/chaos.sh.
TEST_F(Checkpoints, ARunThatIsKilledAtAnyMomentGoesOnAndEndsTheSame) {
  const std::vector<std::string> flags = {"--max_steps", "8", "--save_steps", "1", "--save_total_limit", "2"};
  ASSERT_EQ(train(2, "whole", flags).exit_code, 0);
  std::mt19937 random(20);
  for (int kill = 0; kill < 10; ++kill) {
    auto words = command(2, "killed", flags);
    if (fs::exists(folder_ + "/killed/checkpoint-1") || kill > 0)
      for (const auto& entry : fs::directory_iterator(folder_ + "/killed"))
        if (entry.path().filename().string().starts_with("checkpoint-")) {
          words.insert(words.end(), {"--resume_from_checkpoint", "true"});
          break;
        }
    test::Subprocess run(words);
    run.wait_for_output("Running training", std::chrono::seconds(60));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
    // The launcher and a rank in turns; a run may have come to its end.
    const auto ranks = test::ranks_of(run.pid());
    const auto victim = ranks.find(kill / 2 % 2);
    if (kill % 2 == 1 && victim != ranks.end()) {
      ::kill(victim->second, SIGKILL);
    } else {
      run.signal(SIGKILL);
    }
    run.finish();
    if (!fs::exists(folder_ + "/killed")) continue;
    for (const auto& entry : fs::directory_iterator(folder_ + "/killed")) {
      if (!entry.path().filename().string().starts_with("checkpoint-")) continue;
      const Finished found = tessera({"inspect", entry.path().string()});
      EXPECT_EQ(found.exit_code, 0) << found.out << found.err;
    }
  }
  bool any = false;
  for (const auto& entry : fs::directory_iterator(folder_ + "/killed"))
    any = any || entry.path().filename().string().starts_with("checkpoint-");
  auto last = flags;
  if (any) last.insert(last.end(), {"--resume_from_checkpoint", "true"});
  const Finished r = train(2, "killed", last);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(same_weights("whole", "killed"));
}

TEST_F(Checkpoints, ARunWhoseRankIsKilledGoesOnAndEndsTheSame) {
  const std::vector<std::string> flags = {"--max_steps", "40", "--save_steps", "1", "--save_total_limit", "2"};
  ASSERT_EQ(train(2, "whole", flags).exit_code, 0);
  auto words = flags;
  for (const int victim : {1, 0}) {
    test::Subprocess run(command(2, "killed", words));
    ASSERT_TRUE(run.wait_for_output("Running training", std::chrono::seconds(120)));
    const auto ranks = test::ranks_of(run.pid());
    ASSERT_EQ(ranks.size(), 2u);
    std::string last;
    while (run.running() && last.empty()) {  // its first checkpoint
      for (const auto& entry : fs::directory_iterator(folder_ + "/killed"))
        if (entry.path().filename().string().starts_with("checkpoint-")) last = entry.path().string();
    }
    ::kill(ranks.at(victim), SIGKILL);
    const Finished r = run.finish();
    EXPECT_EQ(r.exit_code, 128 + SIGKILL) << r.err;
    EXPECT_SAYS(r.err, "rank " + std::to_string(victim) + " failed with signal 9 (SIGKILL");
    if (victim == 1) words.insert(words.end(), {"--resume_from_checkpoint", "true"});
  }
  const Finished r = train(2, "killed", words);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "Continuing from global step");
  EXPECT_TRUE(same_weights("whole", "killed"));
}

Finished chaos(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"/bin/bash", std::string(TESSERA_TEST_DATA) + "/../../scripts/chaos.sh"});
  return test::Subprocess(arguments, {{"TESSERA", TESSERA_BINARY}}).finish(std::chrono::seconds(600));
}

TEST_F(Checkpoints, ChaosOfKillsSavesAndDamageLosesNothing) {
  const Finished r = chaos({"11", "3", "rank,launcher,fault,term,stop,large,flip,cut,gone,torn,export"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "nothing was lost, nothing was left");
  EXPECT_EQ(r.out.find(" 0\n"), std::string::npos) << r.out;  // each kind was felt
}

// As root of a machine that may mount; what it lacks is left out.
TEST_F(Checkpoints, ChaosOfDisksClocksAndSlowPeersLosesNothing) {
  const Finished r = chaos({"6", "5", "full,readonly,clock,slow,zero,stale"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "nothing was lost, nothing was left");
  EXPECT_EQ(r.out.find(" 0\n"), std::string::npos) << r.out;
}

// As root of a machine that may make network namespaces; what it lacks is left out.
TEST_F(Checkpoints, ChaosOfHostsHangsAndLaunchersLosesNothing) {
  const Finished r = chaos({"4", "7", "launcherfault,rankterm,hang,host"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_SAYS(r.out, "nothing was lost, nothing was left");
  EXPECT_EQ(r.out.find(" 0\n"), std::string::npos) << r.out;
}

// Masters in halves are read while the next step computes.
TEST_F(Checkpoints, InBfloat16SavingChangesNothingAndARunGoesOnBitEqual) {
  const std::vector<std::string> flags = {"--bf16", "true", "--max_steps", "6"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return more;
  };
  const Finished saved = train(2, "saved", with({"--save_steps", "1"}));
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  ASSERT_EQ(train(2, "unsaved", with({"--save_strategy", "no"})).exit_code, 0);
  EXPECT_TRUE(same_weights("saved", "unsaved"));
  EXPECT_TRUE(same_weights("saved/checkpoint-6", "unsaved"));
  const Finished r = train(2, "on", with({"--resume_from_checkpoint", folder_ + "/saved/checkpoint-3"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(same_weights("saved", "on"));
}

TEST_F(Checkpoints, AnotherNumberOfRanksKeepsTheOrderOfTheRows) {
  const auto flags = [](const char* batch) {
    return std::vector<std::string>{"--max_steps", "6", "--save_steps", "3", "--per_device_train_batch_size", batch};
  };
  ASSERT_EQ(train(2, "whole", flags("4")).exit_code, 0);
  for (const auto& [ranks, batch] : {std::pair{1, "8"}, {4, "2"}}) {
    auto words = flags(batch);
    words.insert(words.end(), {"--resume_from_checkpoint", folder_ + "/whole/checkpoint-3"});
    const std::string out = "on" + std::to_string(ranks);
    const Finished r = train(ranks, out, words);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_LT(distance("whole", out), 2e-4) << ranks;
  }
  auto other = flags("4");
  other.insert(other.end(), {"--resume_from_checkpoint", folder_ + "/whole/checkpoint-3"});
  const Finished r = train(1, "other", other);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "8 rows a step, this run has 4: its step 3 is step 6 here");
}

TEST_F(Checkpoints, DamageIsNamedAndTheOneBeforeIsTaken) {
  const std::vector<std::string> flags = {"--max_steps", "3", "--save_steps", "1"};
  ASSERT_EQ(train(2, "out", flags).exit_code, 0);
  const std::string state = folder_ + "/out/checkpoint-3/training_state/rank_00001_of_00002.safetensors";
  std::string bytes = read_file(state);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(state, std::ios::binary) << bytes;
  const Finished found = tessera({"inspect", folder_ + "/out/checkpoint-3"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_SAYS(found.out, "its bytes have changed");
  auto words = flags;
  words.insert(words.end(), {"--resume_from_checkpoint", "true"});
  const Finished r = train(2, "out", words);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "checkpoint-3' is left out: 'training_state/rank_00001_of_00002.safetensors' has the checksum");
  EXPECT_SAYS(r.out, "Continuing from global step 2");
  words.back() = folder_ + "/model";
  const Finished foreign = train(2, "other", words);
  EXPECT_EQ(foreign.exit_code, 4);
  EXPECT_SAYS(foreign.err, "has no manifest.json: it was not written by tessera");
}

// Every kind of damage: what is wrong is said, with the file, and nothing is changed.
TEST_F(Checkpoints, WhatCannotBeGoneOnFromIsSaid) {
  ASSERT_EQ(train(2, "out", {"--max_steps", "2", "--save_steps", "1"}).exit_code, 0);
  const std::string whole = folder_ + "/out/checkpoint-2", other = folder_ + "/out/checkpoint-1";
  const std::string state = "/training_state/rank_00001_of_00002.safetensors";
  struct Damage {
    const char* says;
    std::function<void(const std::string& folder)> make;
  };
  const auto edit = [](const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_file(file);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(file, std::ios::binary) << text;
  };
  const std::vector<Damage> damages = {
      {"bytes, ", [&](const std::string& f) { fs::resize_file(f + state, fs::file_size(f + state) - 8); }},
      {"is missing or cannot be read", [&](const std::string& f) { fs::remove(f + state); }},
      {"its bytes have changed",
       [&](const std::string& f) { fs::copy_file(other + state, f + state, fs::copy_options::overwrite_existing); }},
      {"has format version 99, this program reads versions 1 to 1",
       [&](const std::string& f) { edit(f + "/manifest.json", "\"version\": 1", "\"version\": 99"); }},
      {"its own checksum does not fit",
       [&](const std::string& f) { edit(f + "/manifest.json", "\"step\": 2", "\"step\": 3"); }},
      {"is not a JSON object",
       [&](const std::string& f) { fs::resize_file(f + "/manifest.json", fs::file_size(f + "/manifest.json") / 2); }},
      {"has no manifest.json", [&](const std::string& f) { fs::remove(f + "/manifest.json"); }}};
  for (const auto& damage : damages) {
    const std::string folder = folder_ + "/damaged";
    fs::remove_all(folder);
    fs::copy(whole, folder, fs::copy_options::recursive);
    damage.make(folder);
    const Finished r = train(1, "x", {"--max_steps", "3", "--resume_from_checkpoint", folder});
    EXPECT_EQ(r.exit_code, 4) << damage.says;
    EXPECT_SAYS(r.err, damage.says);
    EXPECT_SAYS(r.err, "Choose another checkpoint");
    EXPECT_EQ(tessera({"inspect", folder}).exit_code, 1) << damage.says;
  }
  const Finished unwritable = train(1, "model/config.json/out", {"--max_steps", "1"});
  EXPECT_EQ(unwritable.exit_code, 4);
  EXPECT_SAYS(unwritable.err, "Choose another output folder");
}

TEST_F(Checkpoints, AnotherModelIsAnErrorThatNamesTheParameter) {
  ASSERT_EQ(train(2, "out", {"--max_steps", "1", "--save_steps", "1"}).exit_code, 0);
  fs::rename(folder_ + "/model", folder_ + "/small");
  fs::copy(data(), folder_ + "/data");
  auto config = json::parse(read_file(folder_ + "/data/config.json"));
  config["intermediate_size"] = config["intermediate_size"].get<int>() + 16;
  std::ofstream(folder_ + "/data/config.json") << config;
  ASSERT_EQ(tessera({"init-model", folder_ + "/data", folder_ + "/model"}).exit_code, 0);
  const Finished r = train(2, "other", {"--max_steps", "2", "--resume_from_checkpoint", folder_ + "/out/checkpoint-1"});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_SAYS(r.err, "mlp.");
  EXPECT_SAYS(r.err, "belongs to another model");
}

TEST_F(Checkpoints, OtherShapesAreAnErrorThatNamesTheParameter) {
  const std::vector<std::string> lora = {"--max_steps",           "2",         "--save_steps", "1",
                                         "--use_peft_lora",       "true",      "--lora_r",     "4",
                                         "--lora_target_modules", "all-linear"};
  ASSERT_EQ(train(2, "out", lora).exit_code, 0);
  auto words = lora;
  words.insert(words.end(), {"--resume_from_checkpoint", folder_ + "/out/checkpoint-1"});
  for (const char* rank : {"8", "2"}) {
    words[7] = rank;
    const Finished r = train(2, "other", words);
    EXPECT_EQ(r.exit_code, 4) << rank;
    EXPECT_SAYS(r.err, "default.weight");
    EXPECT_SAYS(r.err, "belongs to another model");
  }
}

TEST_F(Checkpoints, TheAcceleratePartGoesOnLikeOurs) {
  const std::vector<std::string> flags = {"--max_steps", "4", "--save_steps", "2", "--save_accelerate_state"};
  ASSERT_EQ(train(2, "whole", {"--max_steps", "4", "--save_steps", "2"}).exit_code, 0);
  for (const std::string type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"}) {
    const std::string config = folder_ + "/" + type + ".yaml";
    write_file_atomically(config,
                          "distributed_type: FSDP\nuse_cpu: true\nnum_processes: 2\nfsdp_config:\n"
                          "  fsdp_state_dict_type: " +
                              type + "\n");
    auto words = command(2, type, flags);
    words.insert(words.begin() + 2, {"--config_file", config});
    const Finished r = test::run(words);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const std::string checkpoint = folder_ + "/" + type + "/checkpoint-2";
    fs::remove_all(checkpoint + "/training_state");
    fs::remove(checkpoint + "/manifest.json");
    const Finished found = tessera({"inspect", checkpoint, "--json"});
    EXPECT_EQ(found.exit_code, 0) << found.out;
    EXPECT_SAYS(found.out, type == "FULL_STATE_DICT" ? "optimizer.bin" : type);
    const Finished on = train(2, type + "_on", {"--max_steps", "4", "--resume_from_checkpoint", checkpoint});
    ASSERT_EQ(on.exit_code, 0) << on.err;
    EXPECT_TRUE(same_weights("whole", type + "_on")) << type;
  }
}

TEST_F(Checkpoints, HoldTheSameWeightsWithTheAcceleratePartInBf16) {
  for (const std::string out : {"alone", "beside"}) {
    std::vector<std::string> flags = {"--max_steps", "4", "--save_steps", "1"};
    if (out == "beside") flags.push_back("--save_accelerate_state");
    auto words = command(2, out, flags);
    words.insert(words.begin() + 2, {"--mixed_precision", "bf16"});
    const Finished r = test::run(words);
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  for (const std::string step : {"1", "2", "3", "4"})
    EXPECT_TRUE(same_weights("alone/checkpoint-" + step, "beside/checkpoint-" + step)) << step;
}

TEST_F(Checkpoints, AreExportedFromWhatAccelerateWroteShardedOrWhole) {
  const std::string from = std::string(TESSERA_TEST_DATA) + "/accelerate", to = folder_ + "/exported";
  for (const std::string part : {"/pytorch_model_fsdp_0", "/pytorch_model_fsdp.bin"}) {
    const Finished r = tessera({"launch", "--cpu", "--num_processes", "2", "export", from + part, to, "--model", from,
                                "--overwrite_output_dir"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto made = io::open_weights(to), expected = io::open_safetensors(from + "/expect_model.safetensors");
    for (const auto& info : expected->tensors())
      EXPECT_TRUE(io::read_tensor(*made, info.name).equal(io::read_tensor(*expected, info.name))) << info.name;
    EXPECT_TRUE(fs::exists(to + "/config.json"));
  }
  const Finished missing = tessera({"export", from + "/v2", folder_ + "/x"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_SAYS(missing.err, "looked for model.safetensors");
}

TEST_F(Checkpoints, AnAdapterIsExportedAsItIsOrMerged) {
  const std::vector<std::string> lora = {"--max_steps",           "1",         "--use_peft_lora", "true",
                                         "--lora_target_modules", "all-linear"};
  ASSERT_EQ(train(2, "out", lora).exit_code, 0);
  const std::string checkpoint = folder_ + "/out/checkpoint-1";
  ASSERT_EQ(tessera({"export", checkpoint, folder_ + "/adapter"}).exit_code, 0);
  EXPECT_TRUE(same_weights("adapter", "out", "adapter_model.safetensors"));
  const Finished r = tessera({"export", checkpoint, folder_ + "/merged", "--merge"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Finished merge = tessera(
      {"merge", "--model", folder_ + "/model", "--adapter", folder_ + "/out", "--output_dir", folder_ + "/merged2"});
  ASSERT_EQ(merge.exit_code, 0) << merge.err;
  EXPECT_TRUE(same_weights("merged", "merged2"));
}

TEST_F(Checkpoints, TwoRunsDoNotWriteOneFolder) {
  test::Subprocess first(command(1, "out", {"--max_steps", "2000", "--save_steps", "1000"}));
  ASSERT_TRUE(first.wait_for_output("Running training", std::chrono::seconds(60)));
  const Finished second = train(1, "out", {"--max_steps", "1", "--overwrite_output_dir"});
  EXPECT_EQ(second.exit_code, 4);
  EXPECT_SAYS(second.err, "is being written by another run (process ");
  first.signal(SIGKILL);
  first.finish();
}

TEST_F(Checkpoints, AFolderThatIsRemovedEndsTheRunByName) {
  for (const bool with_all : {true, false}) {  // and of a folder that stays, the metrics
    SCOPED_TRACE(with_all);
    test::Subprocess run(command(2, "out", {"--max_steps", "2000", "--save_strategy", "no", "--logging_steps", "1"}));
    ASSERT_TRUE(run.wait_for_output("'loss'", std::chrono::seconds(60)));
    const std::string lost = folder_ + (with_all ? "/out" : "/out/metrics.jsonl");
    fs::remove_all(lost);
    const Finished r = run.finish();
    EXPECT_NE(r.exit_code, 0);
    EXPECT_SAYS(r.err, "'" + lost + "' was " + (with_all ? "taken away from this run" : "removed while"));
    EXPECT_EQ(fs::exists(lost), false);
  }
}

}  // namespace
}  // namespace tessera
