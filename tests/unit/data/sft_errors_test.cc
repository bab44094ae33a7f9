// Data that cannot be used: the message names file, row and key.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "chat/chat_template.h"
#include "data/sft_dataset.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

class SftData : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    text::TokenizerChanges changes;
    changes.special.eos = "<|im_end|>";
    tokenizer_ = text::open_tokenizer(std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/chatml/tokenizer.json")
                     ->with(changes);
    options_.dataset_name = folder_;
    options_.cache_folder = folder_ + "/cache";
    options_.chat_template = chat::builtin_template("chatml");
    options_.dataset_num_proc = 2;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    const auto path = std::filesystem::path(folder_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  SftSplits load() { return load_sft_data(options_, tokenizer_, notes_); }
  std::string failure() {
    try {
      load();
    } catch (const DataError& e) {
      return e.what();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }
  void expect_failure(const std::string& part) {
    const std::string message = failure();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  std::string folder_ = testing::TempDir() + "sft_data";
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  SftDataOptions options_;
  std::vector<std::string> notes_;
};

constexpr const char* kGood = R"({"messages": [{"role": "user", "content": "hi"}]})"
                              "\n";

TEST_F(SftData, MalformedChatRowsNameFileRowAndKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages": 3})", "train.jsonl:2: key \"messages\" must be a list of messages, found int"},
      {R"({"messages": []})", "train.jsonl:2: key \"messages\" is an empty list"},
      {R"({"messages": ["hi"]})", "train.jsonl:2: key \"messages[0]\" must be an object"},
      {R"({"messages": [{"content": "x"}]})", "train.jsonl:2: key \"messages[0].role\" is missing"},
      {R"({"messages": [{"role": "user"}]})", "train.jsonl:2: key \"messages[0].content\" is missing"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "key \"messages[0].content\" must be a text or a list"},
      {R"({"text": "x"})", "train.jsonl:2: key \"messages\" is missing (the first row has messages"},
      {R"({"messages": null})", "train.jsonl:2: key \"messages\" must be a list of messages, found null"},
      {R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": "{}"})",
       "train.jsonl:2: key \"chat_template_kwargs\" must be an object, found str"},
      {R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}})",
       "train.jsonl:2: \"chat_template_kwargs\" must not have messages: those of the row are rendered"},
      {R"({"messages": )", "train.jsonl:2: not JSON at byte"},
      {R"([1])", "train.jsonl:2: expected a JSON object, found list"},
  };
  for (const auto& [row, message] : cases) {
    SCOPED_TRACE(row);
    write("train.jsonl", std::string(kGood) + row + "\n" + kGood);
    expect_failure(message);
  }
}

TEST_F(SftData, TemplateFailuresNameTheRowAndThePlace) {
  options_.chat_template =
      "{% for m in messages %}\n{% if m.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}x{% endfor %}";
  write("train.jsonl", std::string(kGood) + R"({"messages": [{"role": "critic", "content": "hi"}]})");
  expect_failure("train.jsonl:2: the chat template fails: no critics (line 2, column");
}

TEST_F(SftData, EmptyMixedAndMissingSplitsAreRefused) {
  expect_failure("no file for the split 'train'");
  write("train.jsonl", "\n\n");
  expect_failure("the split 'train' has no rows");
  write("train.csv", "text\nabc\n");
  expect_failure("split 'train' mixes files of several kinds (.csv, .jsonl)");
  options_.splits = "train,,test";
  expect_failure("--splits: expected names");
  options_.splits = "train,train";
  expect_failure("is named twice");
}

TEST_F(SftData, FilesOfOtherProgramsSayWhatTheyLack) {
  for (const std::string separator : {";", "\t"}) {
    write("train.csv", "prompt" + separator + "completion\na" + separator + "b\n");
    expect_failure("train.csv:1: expected columns that commas separate, found one, 'prompt" + separator +
                   "completion'");
  }
  write("train.csv", std::string("\xFF\xFEt\0e\0", 6));
  expect_failure("train.csv: UTF-16, where UTF-8 is read; convert it: iconv -f UTF-16 -t UTF-8 ");
  std::filesystem::remove(std::filesystem::path(folder_) / "train.csv");
  write("train.jsonl", R"({"prompt": 5, "completion": "a"})");
  expect_failure("train.jsonl:1: key \"prompt\" must be a text or a list of messages, found int");
}

TEST_F(SftData, EmptyCellsAreNoTexts) {
  write("train.csv", "text\nabc\n\"\"\n");
  expect_failure("train.csv:3: key \"text\" must be a text, found an empty cell");
  write("train.csv", "prompt,completion\na,b\nc,\n");
  expect_failure("train.csv:3: key \"completion\" must be a text or a list of messages, found an empty cell");
  options_.chat_template = "{{ messages[0].content }}{% if tools %}+{% endif %}";
  write("train.csv", "messages,tools\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"x\"\"}]\",\n");
  EXPECT_EQ(load().train->row(0).input_ids, tokenizer_->encode("x", false).ids);
}

TEST_F(SftData, UnknownColumnsAreListed) {
  write("train.jsonl", R"({"question": "x", "answer": "y"})");
  expect_failure("found question, answer");
}

TEST_F(SftData, RowsOfAnotherTaskNameIt) {
  write("train.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  expect_failure("found prompt, chosen, rejected, which 'tessera dpo' (orpo, cpo, reward) learns from");
}

TEST_F(SftData, APipeOrALinkToNothingIsNoDataFile) {
  ASSERT_EQ(::mkfifo((folder_ + "/train.jsonl").c_str(), 0600), 0);
  expect_failure("train.jsonl': expected a file, found a named pipe");
  std::filesystem::remove(folder_ + "/train.jsonl");
  std::filesystem::create_symlink(folder_ + "/gone.jsonl", folder_ + "/train.jsonl");
  expect_failure("train.jsonl': it is a link to");
}

TEST_F(SftData, DamagedParquetIsNamed) {
  write("train.parquet", "PAR1");
  expect_failure("train.parquet");
}

TEST_F(SftData, OverlongRowsAreCutWithANote) {
  options_.max_length = 6;
  write("train.jsonl", R"({"text": "one two three four five six seven eight nine"})");
  const auto splits = load();
  EXPECT_EQ(splits.train->length(0), 6);
  ASSERT_GE(notes_.size(), 2U);
  EXPECT_NE(notes_[1].find("longer than --max_length 6"), std::string::npos) << notes_[1];
  EXPECT_EQ(splits.eval, nullptr);
}

TEST_F(SftData, RowsWithNothingToLearnAreLeftOutOrRefused) {
  options_.max_length = 4;
  write("train.jsonl", R"({"prompt": "one two three four five six seven", "completion": "x"})");
  expect_failure("no row of the split 'train' has a token to learn");
}

TEST_F(SftData, IncompatibleOptionsAreRefused) {
  write("train.jsonl", R"({"text": "abc"})");
  options_.assistant_only_loss = true;
  expect_failure("--assistant_only_loss needs conversations");
  options_.assistant_only_loss = false;
  options_.packing = true;
  options_.max_length = 0;
  expect_failure("packing needs --max_length");
}

TEST_F(SftData, AllFormatsAndPlacesGiveTheSameRows) {
  write("a/train.jsonl", "{\"text\": \"first, row\"}\n{\"text\": \"second\"}\n");
  write("b/data/train-00000-of-00002.json", R"([{"text": "first, row"}])");
  write("b/data/train-00001-of-00002.json", R"({"data": [{"text": "second"}]})");
  write("c/train/part.csv", "id,text\n1,\"first, row\"\n2,second\n");
  write("d/only.txt", "first, row\n\nsecond\n");
  options_.dataset_name = folder_ + "/a";
  const auto expected = load().train;
  for (const char* folder : {"b", "c", "d"}) {
    SCOPED_TRACE(folder);
    options_.dataset_name = folder_ + "/" + folder;
    const auto other = load().train;
    ASSERT_EQ(other->size(), 2);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(other->row(i).input_ids, expected->row(i).input_ids);
  }
}

TEST_F(SftData, TheCacheIsUsedUntilTheDataChange) {
  write("train.jsonl", R"({"text": "abc"})");
  EXPECT_EQ(load().train->size(), 1);
  const auto rows = [&] {
    std::int64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/cache"))
      count += entry.path().extension() == ".rows" ? 1 : 0;
    return count;
  };
  EXPECT_EQ(rows(), 1);
  EXPECT_EQ(load().train->size(), 1);
  EXPECT_EQ(rows(), 1);
  write("train.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"d\"}\n");
  EXPECT_EQ(load().train->size(), 2);
  options_.append_concat_token = true;
  load();
  EXPECT_EQ(rows(), 3);
}

TEST_F(SftData, InstructionsBecomeChatsWhereThereIsATemplate) {
  write("train.jsonl", R"({"instruction": "Add.", "input": "1 2", "output": "3"})");
  const auto row = load().train->row(0);
  EXPECT_EQ(tokenizer_->decode(row.input_ids),
            "<|im_start|>user\nAdd.\n\n1 2<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n");
  EXPECT_EQ(row.labels.front(), -100);
  EXPECT_NE(row.labels.back(), -100);
}

/// As TRL, which trains on a column input_ids as it is, whatever else a row has.
TEST_F(SftData, RowsThatAreTokenisedStayAsTheyAre) {
  using Ids = std::vector<std::int32_t>;
  const auto labels = [&](const std::string& more) {
    write("train.jsonl", R"({"text": "abc", "input_ids": [5, 6, 7])" + more + "}");
    const auto row = load().train->row(0);
    EXPECT_EQ(row.input_ids, (Ids{5, 6, 7}));
    return row.labels;
  };
  const std::string masks = R"(, "assistant_masks": [0, 1, 1], "completion_mask": [1, 1, 0])";
  EXPECT_EQ(labels(""), (Ids{5, 6, 7}));
  EXPECT_EQ(labels(R"(, "labels": [-100, 9, 7])"), (Ids{-100, 9, 7}));
  EXPECT_EQ(labels(masks), (Ids{-100, 6, 7}));
  EXPECT_EQ(labels(masks + R"(, "prompt": "a", "completion": "b")"), (Ids{-100, 6, -100}));
  options_.completion_only_loss = true;
  EXPECT_EQ(labels(masks), (Ids{-100, 6, -100}));
  write("train.jsonl", R"({"input_ids": [5]})");
  expect_failure("train.jsonl:1: key \"completion_mask\" is missing");
  options_.completion_only_loss.reset();
  const auto refused = [&](const std::string& row, const std::string& says) {
    write("train.jsonl", row);
    expect_failure("train.jsonl:1: key " + says);
  };
  refused(R"({"input_ids": "abc"})", "\"input_ids\" must be a list of numbers, found str");
  refused(R"({"input_ids": [5, 1000000]})", "\"input_ids\" must be a list of whole numbers below ");
  refused(R"({"input_ids": [5, -100]})", "\"input_ids\" must be a list of whole numbers below ");
  refused(R"({"input_ids": [5], "labels": [-1]})", "\"labels\" must be a list of whole numbers below ");
  refused(R"({"input_ids": [5, 6], "labels": [5]})", "\"labels\" must be as long as \"input_ids\", 2, found 1");
  refused(R"({"input_ids": [5], "assistant_masks": [2]})",
          "\"assistant_masks\" must be a list of whole numbers below 2");
}

// As TRL packs a data set: a thousand rows at a time, whichever files they are in.
TEST_F(SftData, PackingGoesOnInTheNextFile) {
  options_.packing = true;
  options_.max_length = 128;
  for (int i = 0; i < 4; ++i)
    write("train-" + std::to_string(i) + ".jsonl", R"({"text": "ab ab"})"
                                                   "\n");
  for (const auto strategy : {PackingStrategy::kBfd, PackingStrategy::kBfdSplit, PackingStrategy::kWrapped}) {
    options_.packing_strategy = strategy;
    EXPECT_EQ(load().train->size(), 1);
  }
}

TEST_F(SftData, PackedRowsAreThoseOfOneFileWhateverTheThreads) {
  options_.packing = true;
  options_.max_length = 16;
  std::string all, part;
  for (int i = 0; i < 1100; ++i) {
    const std::string row = R"({"text": ")" + std::string(1 + i % 7, 'a') + "\"}\n";
    all += row;
    part += row;
    if (i % 300 != 299 && i != 1099) continue;
    write("many/train-" + std::to_string(i + 1000) + ".jsonl", part);
    part.clear();
  }
  write("one/train.jsonl", all);
  const auto rows = [&](const std::string& folder, int threads) {
    options_.dataset_name = folder_ + "/" + folder;
    options_.dataset_num_proc = threads;
    options_.cache_folder = folder_ + "/cache" + std::to_string(threads);
    std::vector<std::vector<std::int32_t>> out;
    const auto train = load().train;
    for (std::int64_t i = 0; i < train->size(); ++i) out.push_back(train->row(i).input_ids);
    return out;
  };
  const auto one = rows("one", 1);
  EXPECT_EQ(rows("many", 1), one);
  EXPECT_EQ(rows("many", 3), one);
}

}  // namespace
}  // namespace tessera::data
