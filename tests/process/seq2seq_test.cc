// The whole job on two processes: from a config.json to an adapter, and what goes wrong on the way.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::Finished;
using test::kDemo;

class Seq2Seq : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "seq2seq_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", kDemo + "model", folder_ + "/model"}).exit_code, 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Finished train(int ranks, std::vector<std::string> flags) {
    std::vector<std::string> command = {TESSERA_BINARY,
                                        "launch",
                                        "--cpu",
                                        "--num_processes",
                                        std::to_string(ranks),
                                        "seq2seq",
                                        "--model_name_or_path",
                                        folder_ + "/model",
                                        "--max_steps",
                                        "6",
                                        "--logging_steps",
                                        "1",
                                        "--max_eval_steps",
                                        "2",
                                        "--print_model",
                                        "false",
                                        "--disable_tqdm"};
    if (std::find(flags.begin(), flags.end(), "--dataset_path") == flags.end()) {
      flags.insert(flags.end(), {"--dataset_path", kDemo + "data/Sentences_demo.txt"});
    }
    command.insert(command.end(), flags.begin(), flags.end());
    return test::run(command);
  }

  /// With large weights and many tokens that end a text: its texts are of different lengths.
  void make_talkative_model() {
    fs::copy(kDemo + "model", folder_ + "/config");
    auto config = nlohmann::json::parse(read_file(kDemo + "model/config.json"));
    config["initializer_factor"] = 3.0;
    std::ofstream(folder_ + "/config/config.json") << config;
    ASSERT_EQ(
        test::run({TESSERA_BINARY, "init-model", folder_ + "/config", folder_ + "/large", "--seed", "1"}).exit_code, 0);
    nlohmann::json generation = {{"eos_token_id", {1}}, {"pad_token_id", 0}, {"decoder_start_token_id", 0}};
    for (int id = 3; id < config["vocab_size"]; id += 4) generation["eos_token_id"].push_back(id);
    std::ofstream(folder_ + "/large/generation_config.json") << generation;
  }

  std::vector<double> losses(const std::string& run) {
    std::vector<double> out;
    std::ifstream in(folder_ + "/" + run + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("train_loss_exact")) out.push_back(row["train_loss_exact"]);
    }
    return out;
  }

  std::string folder_;
};

TEST_F(Seq2Seq, TwoProcessesTrainAndSaveAnAdapter) {
  const Finished r = train(2, {"--output_dir", folder_ + "/out", "--learning_rate", "1e-2"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "trainable params: 36,864 || all params:")) << r.out;
  EXPECT_TRUE(contains(r.out, "epoch=0: train_ppl="));
  EXPECT_TRUE(contains(r.out, "accuracy="));
  EXPECT_EQ(losses("out").size(), 6u);
  const auto adapter = io::open_safetensors(folder_ + "/out/adapter_model.safetensors");
  EXPECT_NE(adapter->find("base_model.model.encoder.block.0.layer.0.SelfAttention.q.lora_A.weight"), nullptr);
  const auto config = nlohmann::json::parse(read_file(folder_ + "/out/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 8);
  EXPECT_EQ(config["target_modules"], nlohmann::json({"q", "v"}));  // the family's, by name: peft needs them
}

TEST_F(Seq2Seq, DropoutDependsOnTheRowsAndNotOnTheRanks) {
  const auto run = [&](const std::string& name, int ranks, const std::vector<std::string>& split) {
    std::vector<std::string> flags = {
        "--output_dir", folder_ + "/" + name, "--learning_rate", "1e-2", "--lora_dropout", "0.3", "--num_epochs", "1"};
    flags.insert(flags.end(), split.begin(), split.end());
    const Finished r = train(ranks, flags);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return losses(name);
  };
  const auto one = run("one", 1, {"--per_device_train_batch_size", "12"});
  ASSERT_EQ(one.size(), 6u);
  for (const auto& other :
       {run("two", 2, {"--per_device_train_batch_size", "6"}), run("three", 3, {"--per_device_train_batch_size", "4"}),
        run("parts", 1, {"--per_device_train_batch_size", "3", "--gradient_accumulation_steps", "4"})}) {
    ASSERT_EQ(other.size(), 6u);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-5);
  }
}

// With dropout and evaluations, over the end of an epoch; and the folder is held while a run writes it.
TEST_F(Seq2Seq, GoesOnFromACheckpointWithTheSameBits) {
  const auto flags = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--output_dir",       folder_ + "/" + out,
                                    "--lora_dropout",     "0.2",
                                    "--learning_rate",    "1e-2",
                                    "--save_strategy",    "steps",
                                    "--save_steps",       "2",
                                    "--save_total_limit", "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ASSERT_EQ(train(2, flags("whole", {})).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder_ + "/whole/checkpoint-6/adapter_model.safetensors"));
  const Finished r = train(2, flags("on", {"--resume_from_checkpoint", folder_ + "/whole/checkpoint-2"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(contains(r.out, "Continuing from global step 2")) << r.out;
  const std::string file = "/adapter_model.safetensors";
  EXPECT_EQ(read_file(folder_ + "/on" + file), read_file(folder_ + "/whole" + file));
  EXPECT_EQ(losses("on").size(), 4u);
  const Finished again = train(2, flags("whole", {"--resume_from_checkpoint", "true"}));  // nothing is left to do
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(folder_ + "/on" + file), read_file(folder_ + "/whole" + file));
}

using Method = std::vector<std::string>;  // its flags
class Seq2SeqMethods : public Seq2Seq, public testing::WithParamInterface<Method> {
 protected:
  Finished train_method(int ranks, const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--output_dir",
                                      folder_ + "/" + out,
                                      "--learning_rate",
                                      "1e-2",
                                      "--per_device_train_batch_size",
                                      std::to_string(6 / ranks),
                                      "--do_eval",
                                      "false"};
    flags.insert(flags.end(), GetParam().begin(), GetParam().end());
    flags.insert(flags.end(), more.begin(), more.end());
    return train(ranks, flags);
  }
  std::string adapter(const std::string& out) { return read_file(folder_ + "/" + out + "/adapter_model.safetensors"); }
};

TEST_P(Seq2SeqMethods, TrainAlikeOnOneToThreeRanksAndGoOnWithTheSameBits) {
  std::vector<double> one;
  for (const int ranks : {1, 2, 3}) {
    const std::string name = "r" + std::to_string(ranks);
    const Finished r = train_method(ranks, name, {"--save_strategy", "steps", "--save_steps", "2"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto all = losses(name);
    ASSERT_EQ(all.size(), 6u);
    if (ranks == 1) one = all;
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], one[i], 2e-5 * one[i]) << ranks << " ranks";
  }
  const Finished on = train_method(2, "on", {"--resume_from_checkpoint", folder_ + "/r2/checkpoint-4"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  EXPECT_EQ(adapter("on"), adapter("r2"));
  const Finished next = train_method(2, "next", {"--adapter_name_or_path", folder_ + "/r2"});
  ASSERT_EQ(next.exit_code, 0) << next.err;
  EXPECT_LT(losses("next").front(), one.front()) << "the same rows, after six steps";
}

INSTANTIATE_TEST_SUITE_P(Methods, Seq2SeqMethods,
                         testing::Values(Method{"--peft_type", "IA3"},
                                         Method{"--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "4",
                                                "--prompt_tuning_init", "SAMPLE_VOCAB"},
                                         Method{"--peft_type", "LOHA", "--r", "4"},
                                         Method{"--peft_type", "VERA", "--r", "16"},
                                         Method{"--peft_type", "OFT", "--oft_block_size", "4"},
                                         Method{"--peft_type", "LN_TUNING"},
                                         Method{"--peft_type", "TRAINABLE_TOKENS", "--token_indices", "1,3,5"}));

// Ranks generate from rows of their own, in the last batch from fewer or none, and their texts end after other numbers
// of steps: with large weights and many tokens that end a text, random ones do. transformers 5.24 gives the same texts.
TEST_F(Seq2Seq, EvaluationsGenerateTheSameTextsOnOneToThreeRanks) {
  make_talkative_model();
  std::ifstream all(kDemo + "data/Sentences_demo.txt");
  std::ofstream validation(folder_ + "/validation.txt"), test_rows(folder_ + "/test.txt");
  std::string line;
  for (int i = 0; i < 12 && std::getline(all, line); ++i)
    (i < 7 ? validation : test_rows) << line << "\n" << std::flush;
  const auto run = [&](int ranks, const std::string& beams) {
    const std::string name = folder_ + "/b" + beams + "r" + std::to_string(ranks);
    const Finished r = train(ranks, {"--model_name_or_path",
                                     folder_ + "/large",
                                     "--use_peft_lora",
                                     "false",
                                     "--do_train",
                                     "false",
                                     "--validation_file",
                                     folder_ + "/validation.txt",
                                     "--max_eval_steps",
                                     "0",
                                     "--per_device_eval_batch_size",
                                     "2",
                                     "--predict_with_generate",
                                     "--val_max_target_length",
                                     "12",
                                     "--num_beams",
                                     beams,
                                     "--do_predict",
                                     "--test_file",
                                     folder_ + "/test.txt",
                                     "--output_dir",
                                     name});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_TRUE(contains(r.out, "'eval_rouge1': ")) << r.out;
    EXPECT_TRUE(contains(r.out, "***** predict metrics *****")) << r.out;
    auto results = nlohmann::json::parse(read_file(name + "/all_results.json"));
    results["texts"] = read_file(name + "/generated_predictions.txt");
    return results;
  };
  for (const std::string beams : {"1", "3"}) {
    const auto one = run(1, beams);
    EXPECT_EQ(one["eval_samples"], 7);
    EXPECT_EQ(one["predict_samples"], 5);
    EXPECT_NEAR(one["eval_loss"].get<double>(), 29.8539, 2e-3);  // the logits are in the hundreds
    EXPECT_NEAR(one["eval_gen_len"].get<double>(), beams == "1" ? 59.0 / 7 : 11.0, 1e-9);
    EXPECT_TRUE(contains(one["texts"], beams == "1" ? "rg 22.\nGranot 54. 54." : "Granot\nGranot 54. 54."))
        << one["texts"];
    for (const int ranks : {2, 3}) {
      const auto several = run(ranks, beams);
      EXPECT_EQ(several["texts"], one["texts"]) << ranks << " ranks, " << beams << " beams";
      for (const char* key :
           {"eval_loss", "eval_gen_len", "eval_rouge1", "eval_rougeLsum", "predict_loss", "predict_gen_len"})
        EXPECT_NEAR(several.at(key).get<double>(), one.at(key).get<double>(), 1e-5) << key;
    }
  }
}

// The labels of every other row are what the model writes, so that there is something to find.
TEST_F(Seq2Seq, TranslationsAreMeasuredByBleuWhichChoosesTheBestModel) {
  make_talkative_model();
  const auto rows = [&](const std::vector<std::string>& labels) {
    std::ofstream file(folder_ + "/rows.jsonl");
    for (const auto& label : labels) {
      const auto text = "The company sold " + std::to_string(&label - labels.data()) + " mills.";
      file << nlohmann::json{{"translation", {{"en", text}, {"ro", label}}}} << "\n";
    }
  };
  const auto run = [&](int ranks, const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model_name_or_path",
                                      folder_ + "/large",
                                      "--use_peft_lora",
                                      "false",
                                      "--dataset_path",
                                      folder_ + "/rows.jsonl",
                                      "--validation_file",
                                      folder_ + "/rows.jsonl",
                                      "--source_lang",
                                      "en",
                                      "--target_lang",
                                      "ro_RO",
                                      "--max_eval_steps",
                                      "0",
                                      "--per_device_eval_batch_size",
                                      "2",
                                      "--predict_with_generate",
                                      "--val_max_target_length",
                                      "24",
                                      "--output_dir",
                                      folder_ + "/" + name};
    flags.insert(flags.end(), more.begin(), more.end());
    return train(ranks, flags);
  };
  std::vector<std::string> labels(7, "La revedere, \"domnule\".");
  rows(labels);
  const Finished first =
      run(1, "first", {"--do_train", "false", "--do_predict", "--test_file", folder_ + "/rows.jsonl"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "'eval_bleu': 0.3949, 'eval_gen_len': 21.0,")) << first.out;  // sacrebleu's, too
  EXPECT_FALSE(contains(first.out, "rouge")) << first.out;
  std::istringstream texts(read_file(folder_ + "/first/generated_predictions.txt"));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::string text;
    std::getline(texts, text);
    if (i % 2 == 0) labels[i] = text;
  }
  rows(labels);
  const std::vector<std::string> best = {
      "--max_steps",  "2", "--learning_rate", "1e-6", "--eval_strategy",         "steps",
      "--eval_steps", "1", "--save_strategy", "best", "--metric_for_best_model", "bleu"};
  std::vector<nlohmann::json> measured;
  for (const int ranks : {1, 2}) {
    const std::string name = "best" + std::to_string(ranks);
    auto flags = best;
    flags.insert(flags.end(), {"--per_device_train_batch_size", std::to_string(2 / ranks)});
    const Finished r = run(ranks, name, flags);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto state = nlohmann::json::parse(read_file(folder_ + "/" + name + "/trainer_state.json"));
    double highest = 0;
    for (const auto& row : state["log_history"]) {
      if (!row.contains("eval_bleu")) continue;
      highest = std::max(highest, row["eval_bleu"].get<double>());
      if (ranks == 1)
        measured.push_back(row);
      else
        EXPECT_NEAR(row["eval_bleu"], measured[row["step"].get<std::size_t>() - 1]["eval_bleu"].get<double>(), 1e-4)
            << row;
    }
    EXPECT_GT(highest, 0);
    EXPECT_EQ(state["best_metric"], highest);
  }
  const Finished refused = run(1, "rouge", {"--metric_for_best_model", "rouge1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(contains(refused.err, "eval_bleu")) << refused.err;
}

TEST_F(Seq2Seq, AllLinearIsSavedAsTheListOfModules) {
  const Finished r =
      train(2, {"--output_dir", folder_ + "/out", "--lora_target_modules", "all-linear", "--do_eval", "false"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto targets = nlohmann::json::parse(read_file(folder_ + "/out/adapter_config.json"))["target_modules"];
  ASSERT_TRUE(targets.is_array());
  EXPECT_EQ(targets.size(), 48u);  // 3 x (4 + 2) in the encoder, 3 x (8 + 2) in the decoder; not the head
}

TEST_F(Seq2Seq, TheAdapterContinuesWhereItStopped) {
  ASSERT_EQ(train(2, {"--output_dir", folder_ + "/first", "--do_eval", "false"}).exit_code, 0);
  const Finished r = train(
      2, {"--output_dir", folder_ + "/second", "--adapter_name_or_path", folder_ + "/first", "--do_eval", "false"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_LT(losses("second").front(), losses("first").front());
}

TEST_F(Seq2Seq, OneTwoAndThreeRanksGiveTheSameLossesForTheSameGlobalBatch) {
  auto config = nlohmann::json::parse(read_file(folder_ + "/model/config.json"));
  config["dropout_rate"] = 0.2;  // masks belong to rows, not to ranks
  std::ofstream(folder_ + "/model/config.json") << config;
  for (const int ranks : {1, 2, 3}) {
    const std::string name = "r" + std::to_string(ranks);
    const Finished r =
        train(ranks, {"--output_dir", folder_ + "/" + name, "--use_peft_lora", "false", "--do_eval", "false",
                      "--per_device_train_batch_size", std::to_string(6 / ranks), "--save_model", "false"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  const auto one = losses("r1"), two = losses("r2"), three = losses("r3");
  ASSERT_EQ(one.size(), 6u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]) << "step " << i;
    EXPECT_NEAR(three[i], one[i], 1e-5 * one[i]) << "step " << i;
  }
}

TEST_F(Seq2Seq, TwoRunsAreBitEqual) {
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(train(2, {"--output_dir", folder_ + "/" + name, "--do_eval", "false"}).exit_code, 0);
  }
  EXPECT_EQ(losses("a"), losses("b"));
  EXPECT_EQ(read_file(folder_ + "/a/adapter_model.safetensors"), read_file(folder_ + "/b/adapter_model.safetensors"));
}

TEST_F(Seq2Seq, AResultThatIsThereIsNotOverwritten) {
  fs::create_directories(folder_ + "/out");
  std::ofstream(folder_ + "/out/adapter_model.safetensors") << "precious";
  const Finished r = train(2, {"--output_dir", folder_ + "/out"});
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_TRUE(contains(r.err, "--overwrite_output_dir")) << r.err;
  EXPECT_EQ(read_file(folder_ + "/out/adapter_model.safetensors"), "precious");
}

struct Bad {
  const char* name;
  std::vector<std::string> flags;
  int exit_code;
  const char* says;
};

TEST_F(Seq2Seq, BadInputIsNamedAndLeavesNothing) {
  std::ofstream(folder_ + "/no_at.txt") << "good news@positive\nno label here\n";
  std::ofstream(folder_ + "/empty.txt");
  std::ofstream(folder_ + "/bytes.csv") << "sentence,label\n\xFF\xFE,positive\n";
  std::ofstream(folder_ + "/columns.csv") << "headline,mood\na,b\n";
  const std::vector<Bad> cases = {
      {"a line without @", {"--dataset_path", folder_ + "/no_at.txt"}, 3, "no_at.txt:2"},
      {"an empty data set", {"--dataset_path", folder_ + "/empty.txt"}, 3, "empty.txt"},
      {"undecodable bytes", {"--dataset_path", folder_ + "/bytes.csv"}, 3, "bytes.csv:2"},
      {"a bad label column",
       {"--dataset_path", folder_ + "/columns.csv", "--text_column", "headline", "--label_column", "sentiment"},
       3,
       "mood"},
      {"a target that matches nothing", {"--lora_target_modules", "q_proj"}, 2, "q_proj"},
      {"an unknown flag", {"--learning_rat", "1"}, 2, "--learning_rate"},
      {"a missing model", {"--model_name_or_path", "t5-none"}, 3, "t5-none"},
      {"a contradiction", {"--lora_dropout", "1.5"}, 2, "lora_dropout"},
  };
  for (const Bad& bad : cases) {
    auto flags = bad.flags;
    flags.insert(flags.end(), {"--output_dir", folder_ + "/out"});
    const Finished r = train(2, flags);
    EXPECT_EQ(r.exit_code, bad.exit_code) << bad.name << "\n" << r.err;
    EXPECT_TRUE(contains(r.err, bad.says)) << bad.name << "\n" << r.err;
    EXPECT_FALSE(fs::exists(folder_ + "/out/adapter_model.safetensors")) << bad.name;
  }
}

TEST_F(Seq2Seq, TruncatedWeightsAreNamed) {
  const std::string file = folder_ + "/model/model.safetensors";
  fs::resize_file(file, fs::file_size(file) / 2);
  const Finished r = train(2, {"--output_dir", folder_ + "/out"});
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_TRUE(contains(r.err, "model.safetensors")) << r.err;
}

TEST_F(Seq2Seq, AClassThatMatchesNothingListsTheClassesThereAre) {
  const Finished r = test::run({TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2", "--fsdp_auto_wrap_policy",
                                "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "T5Blok", "seq2seq",
                                "--model_name_or_path", folder_ + "/model", "--dataset_path",
                                kDemo + "data/Sentences_demo.txt", "--output_dir", folder_ + "/out"});
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_TRUE(contains(r.err, "T5Block")) << r.err;
}

}  // namespace
}  // namespace tessera
