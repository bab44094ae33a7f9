// The chat template and the special tokens of a fine-tuning job: what messages and results say of them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flag_sweep.h"
#include "support/program.h"
#include "tasks/sft.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

const std::string kFails = "{% for m in messages %}{{ raise_exception('not this one') }}{% endfor %}";

class SftTemplate : public testing::Test {
 protected:
  SftTemplate() { make_model(test::kTinyChat, in("model")); }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// What goes wrong, empty for nothing.
  std::string train(const Words& more) {
    std::filesystem::remove_all(in("out"));
    Words words = {"--model",
                   in("model"),
                   "--dataset_name",
                   test::kTinyChat,
                   "--dataset_cache_dir",
                   in("cache"),
                   "--output_dir",
                   in("out"),
                   "--max_steps",
                   "1",
                   "--max_length",
                   "32",
                   "--save_strategy",
                   "no",
                   "--per_device_train_batch_size",
                   "2",
                   "--disable_tqdm"};
    words.insert(words.end(), more.begin(), more.end());
    std::ostringstream out, err;
    try {
      EXPECT_EQ(sft(words, out, err), 0);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  nlohmann::json result(const std::string& file) const { return nlohmann::json::parse(read_file(in("out/" + file))); }
  std::int64_t id(const std::string& token) const { return text::open_tokenizer(in("out"))->token_to_id(token); }

  test::TempFolder folder_{"sft_template"};
};

TEST_F(SftTemplate, ThatFailsIsNamedByItsFile) {
  const auto expect_named = [&](const std::string& file, const Words& flags) {
    const std::string error = train(flags);
    EXPECT_NE(error.find("the chat template in '" + file + "'"), std::string::npos) << error;
    EXPECT_NE(error.find("train.jsonl:1: "), std::string::npos) << error;
  };
  write_lines(in("own.jinja"), {kFails});
  expect_named(in("own.jinja"), {"--chat_template_path", in("own.jinja")});
  expect_named("--chat_template_path", {"--chat_template_path", kFails});  // the template itself
  write_lines(in("model/chat_template.jinja"), {kFails});
  expect_named(in("model/chat_template.jinja"), {});
  expect_named(in("model/chat_template.jinja"), {"--chat_template_path", in("model")});
  std::filesystem::remove(in("model/chat_template.jinja"));
  auto config = nlohmann::json::parse(read_file(in("model/tokenizer_config.json")));
  config["chat_template"] = kFails;
  write_file_atomically(in("model/tokenizer_config.json"), config.dump());
  expect_named(in("model/tokenizer_config.json"), {});
  write_lines(in("own.jinja"), {"{% for"});
  const std::string error = train({"--chat_template_path", in("own.jinja")});
  EXPECT_NE(error.find("the chat template in '" + in("own.jinja") + "' cannot be used: "), std::string::npos) << error;
}

// As TRL's clone_chat_template(): a template is of no use without the tokens that it writes.
TEST_F(SftTemplate, OfAnotherTokenizerBringsItsAddedTokensAndItsEndOfATurn) {
  make_model(test::kTinyChat, in("other"));
  auto json = nlohmann::json::parse(read_file(in("other/tokenizer.json")));
  auto token = json["added_tokens"][0];
  for (const char* name : {"<|turn|>", "<|stop|>"}) {
    token["id"] = 1 + json["added_tokens"].back()["id"].get<int>();
    token["content"] = name;
    json["added_tokens"].push_back(token);
  }
  write_file_atomically(in("other/tokenizer.json"), json.dump());
  auto config = nlohmann::json::parse(read_file(in("other/tokenizer_config.json")));
  config["eos_token"] = "<|stop|>";
  config["chat_template"] = "{% for m in messages %}<|turn|>{{ m.content }}<|stop|>{% endfor %}";
  config.erase("added_tokens_decoder");
  write_file_atomically(in("other/tokenizer_config.json"), config.dump());
  const auto before = text::open_tokenizer(in("model"))->vocab_size();

  ASSERT_EQ(train({"--chat_template_path", in("other")}), "");
  EXPECT_EQ(id("<|turn|>"), before);
  EXPECT_EQ(id("<|stop|>"), before + 1);
  EXPECT_EQ(result("config.json")["eos_token_id"], id("<|stop|>"));
  EXPECT_EQ(result("config.json")["vocab_size"], (before + 2 + 63) / 64 * 64);

  ASSERT_EQ(train({"--chat_template_path", in("other"), "--eos_token", "<|turn|>"}), "");
  EXPECT_EQ(result("config.json")["eos_token_id"], id("<|turn|>"));

  ASSERT_EQ(train({"--chat_template_path", in("model")}), "");  // brings nothing: the tables stay as they are
  EXPECT_EQ(result("config.json")["vocab_size"],
            nlohmann::json::parse(read_file(in("model/config.json")))["vocab_size"]);
}

// As transformers' Trainer: a model that is taught another end of a turn stops there.
TEST_F(SftTemplate, TheResultNamesTheTokensThatItWasTrainedWith) {
  const auto config = nlohmann::json::parse(read_file(in("model/config.json")));
  ASSERT_EQ(train({"--chat_template_format", "chatml"}), "");
  EXPECT_EQ(result("config.json")["eos_token_id"], id("<|im_end|>"));
  EXPECT_EQ(result("config.json")["pad_token_id"], id("<pad>"));
  EXPECT_FALSE(std::filesystem::exists(in("out/generation_config.json")));

  write_file_atomically(in("model/generation_config.json"), R"({"eos_token_id": 256, "max_length": 20})");
  ASSERT_EQ(train({"--eos_token", "<|im_start|>"}), "");
  EXPECT_EQ(result("generation_config.json")["eos_token_id"], nlohmann::json({id("<|im_start|>"), 256}));
  EXPECT_EQ(result("generation_config.json")["max_length"], 20);
  EXPECT_EQ(result("config.json")["eos_token_id"], id("<|im_start|>"));

  write_file_atomically(in("model/generation_config.json"), R"({"eos_token_id": [1, 2], "pad_token_id": 3})");
  ASSERT_EQ(train({"--eos_token", "<|im_start|>", "--pad_token", "<|endoftext|>"}), "");
  EXPECT_EQ(result("generation_config.json")["eos_token_id"], nlohmann::json({id("<|im_start|>"), 1, 2}));
  EXPECT_EQ(result("generation_config.json")["pad_token_id"], id("<|endoftext|>"));
  EXPECT_EQ(nlohmann::json::parse(read_file(in("model/config.json"))), config) << "the base stays as it was";
}

// As TRL: a misspelt one would be a new token, of which the model knows nothing.
TEST_F(SftTemplate, EosAndPadAreTokensThatAreThereOrThatTheFormatBrings) {
  for (const std::string flag : {"--eos_token", "--pad_token"}) {
    EXPECT_SAYS(train({flag, "<|im_ed|>"}), flag + " '<|im_ed|>' is no token of the tokenizer '" + in("model") + "'");
    for (const char* brought : {"<pad>", "<|im_start|>user", "<s>"})
      EXPECT_EQ(train({flag, brought, "--chat_template_format", "chatml"}), "");
    EXPECT_SAYS(train({flag, "<|user|>", "--chat_template_format", "chatml"}), "is no token of the tokenizer");
  }
}

}  // namespace
}  // namespace tessera::tasks
