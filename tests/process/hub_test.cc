// Models, adapters and data sets by their names on the Hub, through the program; and the cache that it shares with
// Python.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "support/hub_server.h"
#include "support/sft_job.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::Finished;
using test::HubServer;
using test::kTinyChat;
using test::operator+;
using test::Variables;
using test::Words;

class Hub : public test::SftJob {
 protected:
  Hub() : SftJob("hub") {}

  void SetUp() override {
    SftJob::SetUp();
    server_.put("models", "org/tiny", files_of(folder_ + "/model"));
    HubServer::Files rows;
    for (const char* split : {"train", "test"})
      rows["data/" + std::string(split) + "-00000-of-00001.jsonl"] = {read_file(kTinyChat + "/" + split + ".jsonl"),
                                                                      true};
    rows["README.md"] = {"about"};
    server_.put("datasets", "org/chats", rows);
  }

  static HubServer::Files files_of(const std::string& folder) {
    HubServer::Files out;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const bool is_large = entry.path().extension() == ".safetensors";
      if (entry.is_regular_file()) out[entry.path().filename()] = {read_file(entry.path()), is_large};
    }
    return out;
  }

  Variables environment() const {
    return {{"HF_ENDPOINT", server_.url()},
            {"HF_HOME", folder_ + "/hf"},
            {"HF_HUB_OFFLINE", "0"},
            {"HF_TOKEN", "hf_secret"}};
  }
  Variables offline() const { return {{"HF_HOME", folder_ + "/hf"}, {"HF_HUB_OFFLINE", "1"}}; }

  Finished train(int ranks, const std::string& out, const Variables& variables, const std::string& model = "org/tiny",
                 const Words& more = {}) {
    const Words launch{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)};
    return test::run(launch + test::sft_words(model, "org/chats", folder_, out) +
                         Words{"--max_steps", "2", "--logging_steps", "1", "--eval_strategy", "steps", "--eval_steps",
                               "2", "--seed", "7"} +
                         test::kLora + more,
                     variables);
  }
  /// The messages of the commits that were asked for, in their order.
  Words commits() {
    Words out;
    for (const auto& lines : commit_bodies())
      out.push_back(nlohmann::json::parse(lines.substr(0, lines.find('\n')))["value"]["summary"]);
    return out;
  }
  std::set<std::string> files_of_commit(std::size_t index) {
    std::set<std::string> out;
    std::istringstream lines(commit_bodies().at(index));
    for (std::string line; std::getline(lines, line);)
      if (const auto value = nlohmann::json::parse(line)["value"]; value.contains("path")) out.insert(value["path"]);
    return out;
  }
  Words commit_bodies() {
    Words out;
    for (const auto& request : server_.requests())
      if (contains(request.path, "/commit/")) out.push_back(request.body);
    return out;
  }
  std::string cached(const std::string& repository) const { return folder_ + "/hf/hub/" + repository; }

  HubServer server_;
};

TEST_F(Hub, AModelAndADataSetTrainByTheirNamesAndThenWithoutANetwork) {
  const Finished first = train(2, "first", environment());
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_FALSE(contains(first.out + first.err, "hf_secret"));
  EXPECT_TRUE(contains(first.out, "'eval_loss': ")) << first.out;
  for (const char* part : {"/resolve/", "/model.safetensors"}) EXPECT_GT(server_.count("GET", part), 0) << part;
  for (const auto& r : server_.requests()) EXPECT_EQ(r.authorization, r.at_storage ? "" : "Bearer hf_secret") << r.path;
  const auto adapter = nlohmann::json::parse(read_file(folder_ + "/first/adapter_config.json"));
  EXPECT_EQ(adapter["base_model_name_or_path"], "org/tiny");

  server_.forget_requests();
  const Finished second = train(1, "second", offline());
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(server_.requests().empty());

  const Finished third = test::run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "1"} +
                                       test::sft_words(folder_ + "/model", kTinyChat, folder_, "local") +
                                       Words{"--max_steps", "2", "--logging_steps", "1", "--seed", "7"} + test::kLora,
                                   offline());
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_EQ(losses("second"), losses("local"));

  server_.put("models", "org/adapter", files_of(folder_ + "/first"));
  const Finished answer = test::run(
      {TESSERA_BINARY, "generate", "--model", "org/adapter", "--prompt", "a", "--max_new_tokens", "2"}, environment());
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST_F(Hub, TheResultGoesToTheHubWithACardAndComesBack) {
  const Finished r =
      train(2, "out", environment(), "org/tiny",
            {"--push_to_hub", "--hub_model_id", "org/result", "--hub_strategy", "checkpoint", "--save_steps", "1"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "uploaded to " + server_.url() + "/org/result/commit/")) << r.out;
  EXPECT_FALSE(contains(r.out + r.err, "hf_secret"));
  const auto files = server_.files("models/org/result");
  for (const char* name : {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json",
                           "last-checkpoint/adapter_model.safetensors"})
    ASSERT_TRUE(files.contains(name)) << name;
  for (const auto& [name, file] : files) EXPECT_FALSE(name.starts_with("checkpoint-") || name[0] == '.') << name;
  EXPECT_EQ(files.at("adapter_model.safetensors").bytes, read_file(folder_ + "/out/adapter_model.safetensors"));
  const std::string& card = files.at("README.md").bytes;
  for (const char* part :
       {"base_model: org/tiny", "library_name: peft", "- org/chats", "| eval_loss | ", "| lora_r | 4 |"})
    EXPECT_TRUE(contains(card, part)) << card;
  const Finished answer = test::run(
      {TESSERA_BINARY, "generate", "--model", "org/result", "--prompt", "a", "--max_new_tokens", "2"}, environment());
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST_F(Hub, EveryTrainingTaskUploadsItsCheckpointsAndItsResult) {
  const std::string t5 = folder_ + "/t5";
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kDemo + "model", t5}).exit_code, 0);
  struct Task {
    Words words;
    const char* number;  // of its evaluation, on the card
  };
  const std::map<std::string, Task> tasks = {
      {"classify",
       {{"--model", folder_ + "/model", "--dataset_path", test::kTestData + "/classify", "--label_column", "sentiment"},
        "eval_accuracy"}},
      {"seq2seq",
       {{"--model_name_or_path", t5, "--dataset_path", test::kDemo + "data/Sentences_demo.txt", "--max_eval_steps",
         "1"},
        "eval_loss"}},
      {"summarize",
       {{"--model_name", t5, "--data_dir", test::kTestData + "/wikihow", "--train_rows", "8", "--val_rows", "4",
         "--max_source_length", "48", "--max_target_length", "16"},
        "eval_loss"}}};
  for (const auto& [name, task] : tasks) {
    server_.forget_requests();
    const Finished r = test::run(
        Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "1", name} + task.words +
            Words{"--output_dir", folder_ + "/" + name, "--max_steps", "2", "--save_steps", "1", "--save_strategy",
                  "steps", "--disable_tqdm", "--push_to_hub", "--hub_always_push", "--hub_model_id", "org/" + name},
        environment());
    ASSERT_EQ(r.exit_code, 0) << name << r.err;
    EXPECT_EQ(commits(), (Words{"Training in progress, step 1", "Training in progress, step 2", "Model save"})) << name;
    const auto files = server_.files("models/org/" + name);
    ASSERT_TRUE(files.contains("README.md")) << name;
    const std::string& card = files.at("README.md").bytes;
    EXPECT_TRUE(contains(card, "Trained with `tessera " + name + "`")) << card;
    EXPECT_TRUE(contains(card, std::string("| ") + task.number + " | ")) << card;
    EXPECT_TRUE(files.contains("config.json") || files.contains("adapter_config.json") || name == "summarize") << name;
  }
}

TEST_F(Hub, ARefusedUploadEndsTheCommandAndSaysWhatToUpload) {
  server_.set_fault([](const HubServer::Request& r) -> std::optional<std::string> {
    const bool is_it = r.path == "/api/repos/create";
    return is_it ? std::optional(HubServer::answer(403, "{}")) : std::nullopt;
  });
  const Finished r = train(1, "out", environment(), "org/tiny", {"--push_to_hub", "--hub_model_id", "org/result"});
  EXPECT_NE(r.exit_code, 0);
  EXPECT_TRUE(contains(r.err, "the token in HF_TOKEN may not write there")) << r.err;
  EXPECT_TRUE(contains(r.err, "hf upload org/result '" + folder_ + "/out'")) << r.err;
  EXPECT_TRUE(fs::exists(folder_ + "/out/adapter_model.safetensors"));
}

TEST_F(Hub, CheckpointsGoUpWhileTheRunGoesOn) {
  const Words every = {"--push_to_hub", "--hub_model_id", "org/result", "--hub_always_push", "--save_steps", "1"};
  ASSERT_EQ(train(2, "out", environment(), "org/tiny", every).exit_code, 0);
  EXPECT_EQ(commits(), (Words{"Training in progress, step 1", "Training in progress, step 2", "Model save"}));
  const auto first = files_of_commit(0);
  EXPECT_TRUE(first.contains("adapter_model.safetensors") && first.contains("tokenizer.json"));
  EXPECT_FALSE(first.contains("manifest.json") || first.contains("trainer_state.json"));

  server_.forget_requests();
  const Finished r = train(1, "epochs", environment(), "org/tiny",
                           every + Words{"--hub_strategy", "all_checkpoints", "--hub_private_repo", "--save_strategy",
                                         "epoch", "--save_total_limit", "1", "--max_steps", "-1", "--num_train_epochs",
                                         "2", "--hub_model_id", "org/all"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(commits(),
            (Words{"Training in progress, epoch 1", "Training in progress, epoch 1, checkpoint",
                   "Training in progress, epoch 2", "Training in progress, epoch 2, checkpoint", "Model save"}));
  std::set<std::string> checkpoints;  // the first one, too, which the limit removed here
  for (const auto& [name, file] : server_.files("models/org/all"))
    if (name.ends_with("/training_state/state.json")) checkpoints.insert(name);
  EXPECT_EQ(checkpoints.size(), 2u);
  for (const auto& name : files_of_commit(4)) EXPECT_FALSE(name.starts_with("checkpoint-")) << name << " again";
  for (const auto& request : server_.requests())
    if (request.path == "/api/repos/create") {
      EXPECT_TRUE(contains(request.body, "\"private\":true"));
    }
  for (const auto& entry : fs::directory_iterator(folder_ + "/epochs"))
    EXPECT_FALSE(contains(entry.path().string(), ".uploading")) << entry.path();
}

TEST_F(Hub, AnUploadThatFailsDuringTheRunIsSaidAndMadeUpForAtItsEnd) {
  server_.set_fault([](const HubServer::Request& r) -> std::optional<std::string> {
    const bool is_it = contains(r.path, "/commit/") && contains(r.body, "Training in progress");
    return is_it ? std::optional(HubServer::answer(400, "{}", {"X-Error-Message: not now"})) : std::nullopt;
  });
  const Finished r = train(2, "out", environment(), "org/tiny",
                           {"--push_to_hub", "--hub_model_id", "org/result", "--hub_always_push", "--hub_strategy",
                            "all_checkpoints", "--save_steps", "1"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* name : {"checkpoint-1", "checkpoint-2"}) {
    EXPECT_TRUE(contains(r.err, std::string("--push_to_hub: ") + name + " was not uploaded: ")) << r.err;
    EXPECT_TRUE(server_.files("models/org/result").contains(std::string(name) + "/training_state/state.json"));
  }
  EXPECT_TRUE(contains(r.err, "not now")) << r.err;
}

TEST_F(Hub, OnlyTheEndIsUploadedWhereTheStrategySaysSo) {
  const Finished r =
      train(1, "out", environment(), "org/tiny",
            {"--push_to_hub", "--hub_model_id", "org/result", "--hub_strategy", "end", "--save_steps", "1"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(commits(), Words{"Model save"});
}

TEST_F(Hub, SettingsAloneComeWhereWeightsAreNotRead) {
  const Finished r = test::run({TESSERA_BINARY, "estimate", "org/tiny"}, environment());
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(server_.count("GET", "model.safetensors"), 0);
  EXPECT_EQ(server_.count("HEAD", "model.safetensors"), 0);
}

TEST_F(Hub, AnErrorOfTheHubEndsTheCommandWithItsReason) {
  const Finished r = train(2, "out", environment(), "org/none");
  EXPECT_NE(r.exit_code, 0);
  EXPECT_TRUE(contains(r.err, "'org/none' is neither a file or folder here nor a model at " + server_.url())) << r.err;
  EXPECT_FALSE(contains(r.out + r.err, "hf_secret"));
}

/// huggingface_hub, where there is a Python that has it: TESSERA_PYTHON names it.
class HubAndPython : public Hub {
 protected:
  void SetUp() override {
    if (std::getenv("TESSERA_PYTHON") == nullptr) GTEST_SKIP() << "TESSERA_PYTHON names no Python with huggingface_hub";
    Hub::SetUp();
  }
  std::string python(const std::string& program, const Variables& variables) const {
    const Finished r = test::run({std::getenv("TESSERA_PYTHON"), "-c", program}, variables);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  }
};

TEST_F(HubAndPython, WhatPythonDownloadedIsUsedWithoutANetwork) {
  python(
      "from huggingface_hub import snapshot_download as d\n"
      "d('org/tiny'); d('org/chats', repo_type='dataset')",
      environment());
  server_.forget_requests();
  const Finished r = train(1, "out", offline());
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(HubAndPython, PythonUsesWhatWasDownloadedHereWithoutANetwork) {
  ASSERT_EQ(train(1, "out", environment()).exit_code, 0);
  server_.forget_requests();
  const std::string said = python(
      "from huggingface_hub import snapshot_download as d, hf_hub_download as f, try_to_load_from_cache as t\n"
      "print(d('org/tiny')); print(f('org/tiny', 'model.safetensors'))\n"
      "print(f('org/chats', 'data/train-00000-of-00001.jsonl', repo_type='dataset'))\n"
      "print(t('org/tiny', 'chat_template.jinja'))",
      offline());
  EXPECT_TRUE(contains(said, cached("models--org--tiny/snapshots/"))) << said;
  EXPECT_TRUE(contains(said, "/data/train-00000-of-00001.jsonl")) << said;
  EXPECT_TRUE(contains(said, "object")) << said;  // huggingface_hub's mark for "there is no such file"
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(HubAndPython, OnlinePythonDownloadsNothingAgain) {
  ASSERT_EQ(train(1, "out", environment()).exit_code, 0);
  server_.forget_requests();
  python("from huggingface_hub import snapshot_download as d; d('org/tiny')", environment());
  EXPECT_EQ(server_.count("GET", "/resolve/"), 0);
  // And every file of the snapshot is the same as when Python alone downloads.
  auto elsewhere = environment();
  elsewhere[1].second = folder_ + "/hf_python";
  python("from huggingface_hub import snapshot_download as d; d('org/tiny')", elsewhere);
  const auto list = [](const std::string& root) {
    std::vector<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string path = entry.path().lexically_relative(root).string();
      if (!entry.is_directory() && !contains(path, ".no_exist"))
        out.push_back(path + (entry.is_symlink() ? " -> " + fs::read_symlink(entry.path()).string() : ""));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  EXPECT_EQ(list(cached("models--org--tiny")), list(folder_ + "/hf_python/hub/models--org--tiny"));
}

TEST_F(HubAndPython, ADownloadThatPythonBeganGoesOnHere) {
  const std::string weights = read_file(folder_ + "/model/model.safetensors");
  const std::string blobs = cached("models--org--tiny/blobs");
  fs::create_directories(blobs);
  write_file_atomically(blobs + "/" + test::sha256(weights) + ".incomplete", weights.substr(0, 1000));
  ASSERT_EQ(train(1, "out", environment()).exit_code, 0);
  for (const auto& r : server_.requests())
    if (r.at_storage && r.path.ends_with(test::sha256(weights))) {
      EXPECT_EQ(r.range, "bytes=1000-");
    }
}

}  // namespace
}  // namespace tessera
