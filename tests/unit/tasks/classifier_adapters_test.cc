// An adapter of a classifier over a language model: its head is built again wherever it is used.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flag_sweep.h"
#include "io/safetensors_reader.h"
#include "support/program.h"
#include "tasks/classify.h"
#include "tasks/generate.h"
#include "tasks/merge.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;
using test::kTinyChat;
using test::operator+;

class ClassifierAdapters : public testing::Test {
 protected:
  ClassifierAdapters() {
    auto config = json::parse(read_file(kTinyChat + "/config.json"));
    config["pad_token_id"] = 0;  // which is not the tokenizer's
    for (const char* file : {"/tokenizer.json", "/tokenizer_config.json"})
      write_lines(in("form") + file, {read_file(kTinyChat + file)});
    write_lines(in("form/config.json"), {config.dump()});
    make_model(in("form"), in("base"));
    write_lines(in("train.jsonl"),
                {R"({"text": "good day", "label": "good"})", R"({"text": "bad day", "label": "bad"})",
                 R"({"text": "fine day", "label": "fine"})", R"({"text": "good night", "label": "good"})"});
    write_lines(in("new.jsonl"), {R"({"text": "good day"})", R"({"text": "a very bad day, and long"})",
                                  R"({"text": "fine night"})", R"({"text": "what else"})"});
    said_ = run({"--model",
                 in("base"),
                 "--dataset_name",
                 in("train.jsonl"),
                 "--validation_split",
                 "0",
                 "--use_peft_lora",
                 "true",
                 "--lora_target_modules",
                 "q_proj,v_proj",
                 "--lora_dropout",
                 "0",
                 "--learning_rate",
                 "0.05",
                 "--max_steps",
                 "4",
                 "--per_device_train_batch_size",
                 "4",
                 "--output_dir",
                 in("adapter"),
                 "--print_model",
                 "false",
                 "--do_predict",
                 "--test_file",
                 in("new.jsonl"),
                 "--max_length",
                 "5"});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::string run(const Words& words) {
    std::ostringstream out, err;
    EXPECT_EQ(classify(words + Words{"--disable_tqdm"}, out, err), 0) << err.str();
    return out.str();
  }
  std::string predicted(const Words& model) {
    run(model + Words{"--do_train", "false", "--do_predict", "--test_file", in("new.jsonl"), "--output_dir",
                      in("asked"), "--print_model", "false", "--max_length", "5"});
    return read_file(in("asked/predict_results.txt"));
  }
  void merged(const std::string& to) {
    std::ostringstream out, err;
    ASSERT_EQ(merge({"--model", in("base"), "--adapter", in("adapter"), "--output_dir", in(to)}, out, err), 0);
  }
  std::string said_;

 private:
  test::TempFolder folder_{"classifier_adapters"};
};

TEST_F(ClassifierAdapters, MergeIntoAClassifierThatSaysTheSame) {
  const auto expected = read_file(in("adapter/predict_results.txt"));
  EXPECT_TRUE(expected.starts_with("index\tprediction\n0\t")) << expected;
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 5) << expected;
  EXPECT_SAYS(said_, "4 predictions saved in " + in("adapter/predict_results.txt"));
  EXPECT_SAYS(said_, "texts were cut at --max_length 5");
  merged("merged");
  const auto config = json::parse(read_file(in("merged/config.json")));
  EXPECT_EQ(config["architectures"], json({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config["id2label"], json({{"0", "bad"}, {"1", "fine"}, {"2", "good"}}));
  EXPECT_EQ(config["pad_token_id"], 256);
  const auto weights = io::open_safetensors(in("merged/model.safetensors"));
  EXPECT_NE(weights->find("score.weight"), nullptr);
  EXPECT_EQ(weights->find("lm_head.weight"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(in("merged/classifier.json")));
  EXPECT_EQ(predicted({"--model", in("merged")}), expected);
  EXPECT_EQ(predicted({"--model", in("base"), "--use_peft_lora", "true", "--adapter_name_or_path", in("adapter")}),
            expected);
}

TEST_F(ClassifierAdapters, WithoutNamesHaveThoseOfTransformers) {
  std::filesystem::remove(in("adapter/classifier.json"));
  merged("plain");
  const auto config = json::parse(read_file(in("plain/config.json")));
  EXPECT_EQ(config["id2label"], json({{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}));
  EXPECT_EQ(config["pad_token_id"], 256) << "the tokenizer's";
}

TEST_F(ClassifierAdapters, AreSentToClassifyByGenerate) {
  std::ostringstream out, err;
  try {
    (void)generate({"--model", in("base"), "--adapter", in("adapter"), "--prompt", "a"}, out, err);
    FAIL() << out.str();
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()),
                "is a classifier, which gives classes or numbers and no text; 'tessera classify --model " + in("base") +
                    " --adapter_name_or_path " + in("adapter") + " --do_train false");
  }
}

TEST_F(ClassifierAdapters, AValidationFileIsEnoughToEvaluate) {
  merged("merged");
  write_lines(in("known.jsonl"), {R"({"text": "a", "label": "good"})", R"({"text": "b", "label": "bad"})"});
  const auto said = run({"--model", in("merged"), "--do_train", "false", "--validation_file", in("known.jsonl"),
                         "--output_dir", in("evaluated"), "--print_model", "false"});
  EXPECT_SAYS(said, "rows to evaluate: " + in("known.jsonl") + " (2)");
  EXPECT_SAYS(said, "eval_loss");
  EXPECT_EQ(json::parse(read_file(in("evaluated/eval_results.json")))["eval_samples"], 2);
}

TEST_F(ClassifierAdapters, ABaseThatIsNoClassifierIsAskedForItsClasses) {
  std::ostringstream out, err;
  try {
    (void)classify({"--model", in("base"), "--do_train", "false", "--do_predict", "--test_file", in("new.jsonl"),
                    "--output_dir", in("asked")},
                   out, err);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()), "is no classifier yet");
  }
}

TEST(ClassifyBases, AnEncoderDecoderModelIsRefusedBeforeRowsAreRead) {
  const test::TempFolder folder("t5_model");
  write_lines(folder.path() + "/config.json",
              {R"({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 300})"});
  std::ostringstream out, err;
  try {
    (void)classify({"--model", folder.path(), "--dataset_name", folder.path() + "/no_rows.csv", "--output_dir",
                    folder.path() + "/out"},
                   out, err);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()), "holds a t5, which is an encoder-decoder model, not a classifier");
    EXPECT_SAYS(std::string(e.what()), "tessera seq2seq trains such");
  }
}

TEST(ClassifyBases, ABertModelGetsAHead) {
  const test::TempFolder folder("bert_model");
  const auto in = [&](const std::string& name) { return folder.path() + "/" + name; };
  const json config = {
      {"model_type", "bert"},   {"architectures", {"BertModel"}}, {"vocab_size", 300},       {"hidden_size", 16},
      {"num_hidden_layers", 1}, {"num_attention_heads", 2},       {"intermediate_size", 32}, {"pad_token_id", 256}};
  write_lines(in("bert/config.json"), {config.dump()});
  auto masked = config;
  masked["architectures"] = {"BertForMaskedLM"};
  write_lines(in("masked/config.json"), {masked.dump()});
  make_model(in("masked"), in("whole"));
  const auto weights = io::open_safetensors(in("whole/model.safetensors"));
  std::vector<std::pair<std::string, at::Tensor>> bare;  // as sentence-transformers' folders have them
  for (const auto& info : weights->tensors())
    if (info.name.starts_with("bert.")) bare.emplace_back(info.name.substr(5), io::read_tensor(*weights, info.name));
  io::write_safetensors(in("bert/model.safetensors"), bare);
  write_lines(in("rows.csv"), {"text,label", "good,1", "bad,0", "fine,1", "poor,0"});
  std::ostringstream out, err;
  ASSERT_EQ(classify({"--model", in("bert"), "--tokenizer_name", kTinyChat, "--dataset_name", in("rows.csv"),
                      "--max_steps", "1", "--output_dir", in("out"), "--disable_tqdm"},
                     out, err),
            0)
      << err.str();
  EXPECT_SAYS(out.str(), "classifier.weight");
  EXPECT_EQ(out.str().find("bert.encoder.layer.0.attention.self.query.weight"), std::string::npos)
      << "weights without a prefix are taken";
}

TEST(ClassifyBases, ADistilBertGetsBothLayersOfItsHead) {
  const test::TempFolder folder("distilbert_model");
  const auto in = [&](const std::string& name) { return folder.path() + "/" + name; };
  const json config = {{"model_type", "distilbert"},
                       {"architectures", {"DistilBertForMaskedLM"}},
                       {"vocab_size", 300},
                       {"dim", 16},
                       {"n_layers", 1},
                       {"n_heads", 2},
                       {"hidden_dim", 32},
                       {"pad_token_id", 256}};
  write_lines(in("masked/config.json"), {config.dump()});
  make_model(in("masked"), in("model"));
  write_lines(in("rows.csv"), {"text,label", "good,1", "bad,0", "fine,1", "poor,0"});
  std::ostringstream out, err;
  ASSERT_EQ(classify({"--model", in("model"), "--tokenizer_name", kTinyChat, "--dataset_name", in("rows.csv"),
                      "--max_steps", "1", "--output_dir", in("out"), "--disable_tqdm"},
                     out, err),
            0)
      << err.str();
  EXPECT_SAYS(out.str(), "pre_classifier.weight");
}

}  // namespace
}  // namespace tessera::tasks
