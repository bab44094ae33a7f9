// Classifiers on real processes: losses and measures of transformers and scikit-learn, what is saved, and bad input.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::kTestData;
using test::kTinyChat;
using test::Words;
using test::operator+;

class Classify : public testing::Test {
 protected:
  /// The tiny chat model with random weights; labels: as a classifier of these.
  std::string model(const std::string& name, const std::vector<std::string>& labels = {}) {
    fs::create_directories(in(name + "_config"));
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(kTinyChat + "/" + file, in(name + "_config/" + file));
    auto config = json::parse(read_file(kTinyChat + "/config.json"));
    if (!labels.empty()) {
      config["architectures"] = {"LlamaForSequenceClassification"};
      config["pad_token_id"] = 256;
      for (std::size_t i = 0; i < labels.size(); ++i) {
        config["id2label"][std::to_string(i)] = labels[i];
        config["label2id"][labels[i]] = i;
      }
    }
    write_file_atomically(in(name + "_config/config.json"), config.dump());
    EXPECT_EQ(test::run({TESSERA_BINARY, "init-model", in(name + "_config"), in(name)}).exit_code, 0);
    return in(name);
  }
  Finished train(int ranks, const std::string& model, const std::string& column, const std::string& out,
                 const Words& more = {}) {
    return test::run(Words{TESSERA_BINARY,
                           "launch",
                           "--cpu",
                           "--num_processes",
                           std::to_string(ranks),
                           "classify",
                           "--model",
                           model,
                           "--dataset_path",
                           kTestData + "/classify",
                           "--label_column",
                           column,
                           "--output_dir",
                           in(out),
                           "--per_device_train_batch_size",
                           std::to_string(24 / ranks),
                           "--learning_rate",
                           "1e-3",
                           "--lr_scheduler_type",
                           "constant",
                           "--max_steps",
                           "4",
                           "--logging_steps",
                           "1",
                           "--save_strategy",
                           "no",
                           "--disable_tqdm"} +
                     more);
  }
  std::vector<json> rows(const std::string& out) {
    std::vector<json> found;
    std::ifstream file(in(out) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) found.push_back(json::parse(line));
    return found;
  }
  std::vector<double> losses(const std::string& out) {
    std::vector<double> found;
    for (const auto& row : rows(out))
      if (row.contains("train_loss_exact")) found.push_back(row["train_loss_exact"]);
    return found;
  }
  json last_evaluation(const std::string& out) {
    json found;
    for (const auto& row : rows(out))
      if (row.contains("eval_loss")) found = row;
    return found;
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  test::TempFolder folder_{"classify"};
};

struct Problem {
  std::string column;
  std::vector<std::string> labels;
  std::vector<double> losses;
  json evaluation;
};

TEST_F(Classify, LossesAndMeasuresAreTheReferencesOnAnyNumberOfRanks) {
  const std::vector<Problem> problems = {
      {"sentiment",
       {"negative", "positive"},
       {0.6409018635749817, 0.7776243090629578, 0.6572689414024353, 0.5112251043319702},
       {{"eval_loss", 0.9088464975357056}, {"eval_accuracy", 0.5384615384615384}, {"eval_f1", 0.4583333333333333}}},
      {"topics",
       {"positive", "wet"},
       {0.7403621673583984, 0.6664676070213318, 0.6196364760398865, 0.5636125206947327},
       {{"eval_loss", 0.6630887985229492},
        {"eval_f1", 0.6},
        {"eval_f1_macro", 0.5892857142857143},
        {"eval_accuracy", 0.3076923076923077}}},
      {"stars",
       {"score"},
       {1.3637698888778687, 0.8442841172218323, 0.589608907699585, 0.617988109588623},
       {{"eval_mse", 0.7941374182701111}, {"eval_mae", 0.7800878882408142}, {"eval_pearson", -0.21434439023353882}}}};
  for (const auto& problem : problems) {
    const auto folder = model(problem.column, problem.labels);
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(problem.column + " on " + std::to_string(ranks));
      const auto out = problem.column + std::to_string(ranks);
      const auto r = train(ranks, folder, problem.column, out, {"--eval_strategy", "steps", "--eval_steps", "4"});
      ASSERT_EQ(r.exit_code, 0) << r.err;
      const auto found = losses(out);
      ASSERT_EQ(found.size(), 4u);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], problem.losses[i], 2e-6 * problem.losses[i]) << i;
      const auto evaluation = last_evaluation(out);
      for (const auto& [name, value] : problem.evaluation.items())
        EXPECT_NEAR(evaluation.at(name).get<double>(), value.get<double>(), 1e-5) << name;
    }
  }
}

class ClassifyPairs : public Classify {
 protected:
  const std::string data_ = kTestData + "/classify_pairs";
  const json expect_ = json::parse(read_file(data_ + "/expect.json"));

  /// With first weights; change: of its config.json.
  std::string made(const std::string& name, const json& change = json::object()) {
    const auto& of = expect_.at(name);
    const auto bare = in(name + "_bare");
    fs::create_directories(bare);
    for (const auto& [file, source] : of["tokenizer"].items())
      fs::copy_file(kTestData + "/tokenizers/" + source.get<std::string>(), bare + "/" + file,
                    fs::copy_options::overwrite_existing);
    json config = of["config"];
    config.update(change);
    write_file_atomically(bare + "/config.json", config.dump());
    fs::remove_all(in(name));
    EXPECT_EQ(test::run({TESSERA_BINARY, "init-model", bare, in(name)}).exit_code, 0);
    return in(name);
  }
  Finished mrpc(int ranks, const std::string& model, const std::string& out, const Words& more) {
    return test::run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks), "classify",
                           "--model", model, "--task_name", "mrpc", "--output_dir", in(out), "--max_length", "24",
                           "--per_device_train_batch_size", std::to_string(8 / ranks), "--per_device_eval_batch_size",
                           "4", "--disable_tqdm"} +
                     more);
  }
  Words training() const {
    return {"--dataset_path",     data_,   "--learning_rate", "1e-3",  "--lr_scheduler_type", "constant",
            "--num_train_epochs", "2",     "--seed",          "7",     "--logging_steps",     "1",
            "--eval_strategy",    "epoch", "--save_strategy", "epoch", "--do_predict"};
  }
  std::vector<std::string> predictions(const std::string& out) {
    std::vector<std::string> found;
    std::ifstream file(in(out) + "/predict_results_mrpc.txt");
    std::string line;
    for (std::getline(file, line); std::getline(file, line);) found.push_back(line.substr(line.find('\t') + 1));
    return found;
  }
};

TEST_F(ClassifyPairs, AreTrainedEvaluatedAndPredictedAsByRunGlueOnAnyNumberOfRanks) {
  for (const auto& [name, of] : expect_.items()) {
    const auto model = made(name);
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(name + " on " + std::to_string(ranks));
      const auto out = name + std::to_string(ranks);
      const auto r = mrpc(ranks, model, out, training());
      ASSERT_EQ(r.exit_code, 0) << r.err;
      const auto found = losses(out), expected = of["losses"].get<std::vector<double>>();
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 4e-6) << i;
      for (const auto& [measure, value] : of["evaluation"].items())
        EXPECT_NEAR(last_evaluation(out).at(measure).get<double>(), value.get<double>(), 1e-5) << measure;
      EXPECT_EQ(predictions(out), of["predictions"].get<std::vector<std::string>>());
    }
    EXPECT_EQ(json::parse(read_file(in(name + "2/config.json")))["id2label"],
              json({{"0", "not_equivalent"}, {"1", "equivalent"}}));
  }
}

TEST_F(ClassifyPairs, GoOnFromACheckpointAndPredictWithoutOtherData) {
  const auto model = made("bert");
  ASSERT_EQ(mrpc(2, model, "whole", training()).exit_code, 0);
  const auto on = mrpc(
      1, model, "on",
      training() + Words{"--per_device_train_batch_size", "8", "--resume_from_checkpoint", in("whole/checkpoint-3")});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  const auto whole = losses("whole"), rest = losses("on");
  ASSERT_EQ(rest.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest[i], whole[i + 3], 2e-6) << i;
  const auto again =
      mrpc(2, in("whole"), "again", {"--do_train", "false", "--do_predict", "--test_file", data_ + "/test.jsonl"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(predictions("again"), predictions("whole"));
}

// A RoBERTa with one type, and a tokenizer whose class gives two.
TEST_F(ClassifyPairs, TypesThatTheModelDoesNotHaveAreAnErrorThatNamesTheRemedy) {
  const auto r = mrpc(1, made("bert", {{"type_vocab_size", 1}}), "bad", training());
  EXPECT_EQ(r.exit_code, 3) << r.out;
  EXPECT_SAYS(r.err, "token_type_ids has 1, and the model has 1 types");
  EXPECT_SAYS(r.err, "model_input_names");
}

// Losses of transformers' Trainer, which smooths in evaluations, too.
TEST_F(Classify, LabelsAreSmoothedAsByTheReference) {
  const std::vector<double> expected = {0.660007655620575, 0.8109585642814636, 0.7084914445877075, 0.5942362546920776};
  const auto folder = model("sentiment", {"negative", "positive"});
  for (const int ranks : {1, 2}) {
    const auto out = "smooth" + std::to_string(ranks);
    const auto r = train(ranks, folder, "sentiment", out,
                         {"--label_smoothing_factor", "0.2", "--eval_strategy", "steps", "--eval_steps", "4"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto found = losses(out);
    ASSERT_EQ(found.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 2e-6 * expected[i]) << i;
    EXPECT_NEAR(last_evaluation(out).at("eval_loss").get<double>(), 0.815257728099823, 1e-5);
  }
}

TEST_F(Classify, AModelWithoutAHeadGetsOneAndTheResultNamesItsClasses) {
  const auto r = train(2, model("base"), "sentiment", "out");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "single_label_classification: 2 labels (negative, positive)");
  EXPECT_SAYS(r.out, "newly initialized: score.weight");
  EXPECT_SAYS(r.out, "precision  recall  f1-score  support\n    negative");
  const auto config = json::parse(read_file(in("out/config.json")));
  EXPECT_EQ(config["architectures"], json({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config["id2label"], json({{"0", "negative"}, {"1", "positive"}}));
  EXPECT_EQ(config["label2id"], json({{"negative", 0}, {"positive", 1}}));
  EXPECT_EQ(config["problem_type"], "single_label_classification");
  EXPECT_EQ(config["pad_token_id"], 256);
  const auto weights = io::open_safetensors(in("out/model.safetensors"));
  EXPECT_EQ(weights->find("score.weight")->shape, (std::vector<std::int64_t>{2, 48}));
  EXPECT_EQ(weights->find("lm_head.weight"), nullptr);
  // What was saved is a classifier that the evaluation at its end describes.
  ASSERT_EQ(train(1, in("out"), "sentiment", "again", {"--do_train", "false"}).exit_code, 0);
  EXPECT_NEAR(last_evaluation("again").at("eval_loss").get<double>(),
              last_evaluation("out").at("eval_loss").get<double>(), 1e-6);
}

TEST_F(Classify, GoesOnFromACheckpointAndSavesTheHeadWithAnAdapter) {
  const Words lora = {"--use_peft_lora", "true", "--lora_r",        "4",     "--lora_target_modules", "all-linear",
                      "--learning_rate", "1e-2", "--save_strategy", "steps", "--save_steps",          "2"};
  const auto folder = model("base");
  ASSERT_EQ(train(2, folder, "topics", "whole", lora).exit_code, 0);
  const auto r = train(2, folder, "topics", "on", lora + Words{"--resume_from_checkpoint", in("whole/checkpoint-2")});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(read_file(in("whole/adapter_model.safetensors")) == read_file(in("on/adapter_model.safetensors")));
  EXPECT_EQ(json::parse(read_file(in("on/adapter_config.json")))["task_type"], "SEQ_CLS");
  EXPECT_NE(io::open_safetensors(in("on/adapter_model.safetensors"))->find("base_model.model.score.weight"), nullptr);
  const auto again = train(1, folder, "topics", "again",
                           {"--use_peft_lora", "true", "--adapter_name_or_path", in("on"), "--do_train", "false"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NEAR(last_evaluation("again").at("eval_loss").get<double>(),
              last_evaluation("on").at("eval_loss").get<double>(), 1e-6);
}

TEST_F(Classify, BertGetsAHeadOfItsOwn) {
  const json config = {{"model_type", "bert"},    {"architectures", {"BertForMaskedLM"}},
                       {"vocab_size", 300},       {"hidden_size", 32},
                       {"num_hidden_layers", 2},  {"num_attention_heads", 2},
                       {"intermediate_size", 64}, {"max_position_embeddings", 128},
                       {"pad_token_id", 256}};
  fs::create_directories(in("bert_config"));
  write_file_atomically(in("bert_config/config.json"), config.dump());
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", in("bert_config"), in("bert")}).exit_code, 0);
  const auto r = train(2, in("bert"), "sentiment", "out", {"--tokenizer_name_or_path", kTinyChat});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out,
              "newly initialized: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, "
              "classifier.weight");
  const auto weights = io::open_safetensors(in("out/model.safetensors"));
  EXPECT_NE(weights->find("classifier.weight"), nullptr);
  EXPECT_EQ(weights->find("cls.predictions.transform.dense.weight"), nullptr);
  EXPECT_EQ(json::parse(read_file(in("out/config.json")))["architectures"], json({"BertForSequenceClassification"}));
  const auto long_rows =
      train(1, in("bert"), "sentiment", "bad", {"--tokenizer_name_or_path", kTinyChat, "--max_length", "500"});
  EXPECT_SAYS(long_rows.err, "128 positions");
}

// Another id in config.json, the tokenizer's, would shift the positions of whoever loads the result.
TEST_F(Classify, ARobertaKeepsThePaddingThatItsPositionsCountFrom) {
  for (const bool says : {true, false}) {
    const std::string name = says ? "says" : "defaults";
    json config = {{"model_type", "roberta"}, {"architectures", {"RobertaForMaskedLM"}},
                   {"vocab_size", 300},       {"hidden_size", 32},
                   {"num_hidden_layers", 1},  {"num_attention_heads", 2},
                   {"intermediate_size", 64}, {"max_position_embeddings", 400}};
    if (says) config["pad_token_id"] = 1;
    fs::create_directories(in(name + "_config"));
    write_file_atomically(in(name + "_config/config.json"), config.dump());
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", in(name + "_config"), in(name)}).exit_code, 0);
    const auto r = train(1, in(name), "sentiment", name + "_out", {"--tokenizer_name_or_path", kTinyChat});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto written = json::parse(read_file(in(name + "_out/config.json")));
    EXPECT_EQ(written.value("pad_token_id", 1), 1);
    ASSERT_EQ(train(1, in(name + "_out"), "sentiment", name + "_again", {"--do_train", "false"}).exit_code, 0);
    EXPECT_NEAR(last_evaluation(name + "_again").at("eval_loss").get<double>(),
                last_evaluation(name + "_out").at("eval_loss").get<double>(), 1e-6);
  }
}

TEST_F(Classify, BadInputIsNamed) {
  const auto folder = model("base"), three = model("three", {"a", "b", "c"});
  const auto expect = [&](const Finished& r, const std::string& part) {
    EXPECT_TRUE(r.exit_code == 2 || r.exit_code == 3) << r.exit_code;
    EXPECT_SAYS(r.err, part);
  };
  expect(train(1, three, "sentiment", "out"),
         "rows_train.jsonl:1: the label 'negative' is none of the model's classes");
  EXPECT_EQ(train(1, three, "sentiment", "out", {"--ignore_mismatched_sizes", "true"}).exit_code, 0);
  expect(train(1, folder, "sentiment", "bad", {"--problem_type", "regression"}), "'negative' is no number");
  expect(train(1, folder, "topics", "bad", {"--problem_type", "single_label_classification"}), "is a list");
  expect(train(1, folder, "nothing", "bad"), "no column 'nothing'");
  expect(train(1, folder, "topics", "bad", {"--label_smoothing_factor", "0.1"}), "--label_smoothing_factor");
  expect(train(1, folder, "sentiment", "bad", {"--pad_token", "<none>"}), "is no token of the tokenizer");
}

}  // namespace
}  // namespace tessera
