// How far preference data is read, and what is counted of it. What rows become is compared with TRL's by
// `tessera verify` (tests/golden/folders_test.cc).
#include <gtest/gtest.h>

#include <fstream>

#include "data/preference_dataset.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

class PreferenceData : public testing::Test {
 protected:
  PreferenceData() : folder_("preference_data") {
    options_.dataset_name = folder_.path() + "/train.jsonl";
    options_.splits = "train";
    options_.cache_folder = folder_.path() + "/cache";
    options_.dataset_num_proc = 1;  // which reads two pieces ahead
    std::ofstream file(options_.dataset_name);
    for (int i = 0; i < 700; ++i)  // more than is read at a time
      file << R"({"prompt": "of )" << i << R"(", "chosen": " a)" << i << R"(", "rejected": " b"})" << "\n";
    file << "no row at all\n";
  }
  std::shared_ptr<const PreferenceDataset> read(std::int64_t most_rows) {
    options_.most_rows = most_rows;
    notes_.clear();
    return load_preference_data(options_, text::open_tokenizer(test::kTinyChat), notes_).train;
  }

  test::TempFolder folder_;
  PreferenceDataOptions options_;
  std::vector<std::string> notes_;
};

TEST_F(PreferenceData, IsReadNoFurtherThanItIsNeeded) {
  EXPECT_ANY_THROW(read(0));  // the last line
  const auto few = read(5);
  ASSERT_EQ(few->size(), 5);
  const auto more = read(40);
  ASSERT_EQ(more->size(), 40);
  for (std::int64_t i = 0; i < few->size(); ++i) EXPECT_EQ(few->row(i).chosen, more->row(i).chosen) << i;
  ASSERT_EQ(notes_.size(), 2U);
  EXPECT_NE(notes_[1].find("read as far as --max_steps needs"), std::string::npos) << notes_[1];
}

// Pairs become two rows, a thousand chosen ones first, as TRL maps them in batches.
TEST_F(PreferenceData, CountsWhatIsDesirable) {
  options_.form = PreferenceForm::kUnpaired;
  EXPECT_EQ(read(7)->desirable(), 7);
  std::ofstream(options_.dataset_name) << R"({"prompt": "of", "chosen": " a", "rejected": " b"})" << "\n"
                                       << R"({"prompt": "in", "chosen": " c", "rejected": " d"})" << "\n";
  const auto all = read(0);
  EXPECT_EQ(all->size(), 4);
  EXPECT_EQ(all->desirable(), 2);
  EXPECT_EQ(read(3)->desirable(), 2);
}

// A prompt in a column of another name would be lost without a word.
TEST_F(PreferenceData, CountsRowsWithoutAPrompt) {
  std::ofstream(options_.dataset_name) << R"({"question": "of", "chosen": "a", "rejected": "b"})" << "\n"
                                       << R"({"chosen": "in c", "rejected": "in d"})" << "\n";
  read(0);
  ASSERT_EQ(notes_.size(), 2U);
  EXPECT_NE(notes_[1].find("split 'train': 1 rows have an empty prompt"), std::string::npos) << notes_[1];
  std::ofstream(options_.dataset_name) << R"({"prompt": "of", "chosen": {"content": "a"}, "rejected": "b"})" << "\n";
  try {
    read(0);
    FAIL();
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "key \"chosen\" must be a text or a list of messages, found dict");
  }
}

// As continue_final_message: nothing follows the assistant's own text, which the template may have trimmed, and which
// may stand in parts.
TEST_F(PreferenceData, APromptThatEndsWithTheAssistantGoesOnWithItsText) {
  options_.form = PreferenceForm::kOwnPrompt;
  options_.chat_template =
      "{% for m in messages %}<{{ (m.content if m.content is string else m.content[0].text) | trim }}>{% endfor %}";
  const auto tokenizer = text::open_tokenizer(test::kTinyChat);
  for (const char* content : {R"(" Sure ")", R"([{"type": "text", "text": " Sure "}])"}) {
    std::ofstream(options_.dataset_name)
        << R"({"prompt": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": )" << content
        << R"(}], "chosen": [{"role": "assistant", "content": "yes"}], )"
        << R"("rejected": [{"role": "assistant", "content": "no"}]})" << "\n";
    const auto row = read(0)->row(0);
    EXPECT_TRUE(tokenizer->decode(row.prompt).ends_with("<hi><Sure")) << tokenizer->decode(row.prompt);
    EXPECT_TRUE(tokenizer->decode(row.chosen).starts_with("><yes>")) << tokenizer->decode(row.chosen);
  }
}

TEST_F(PreferenceData, AMarginIsANumberOrTheTextOfOne) {
  options_.form = PreferenceForm::kWhole;
  const auto write = [&](const std::string& margin) {
    std::ofstream(options_.dataset_name) << R"({"chosen": "a", "rejected": "b", "margin": )" << margin << "}\n";
  };
  write("\"0.5\"");
  EXPECT_EQ(read(0)->row(0).margin, 0.5F);
  for (const char* odd : {"\"much\"", "\"[1]\"", "[1]"}) {
    write(odd);
    try {
      read(0);
      FAIL() << odd;
    } catch (const DataError& e) {
      EXPECT_SAYS(std::string(e.what()), "train.jsonl:1: key \"margin\" must be a number, found ");
    }
  }
}

// A table has texts only, so a list of messages stands there as JSON; elsewhere such a text is an answer.
TEST_F(PreferenceData, AnAnswerMayBeJson) {
  const std::string list = R"([{"role": "assistant", "content": "yes"}])";
  options_.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}";
  std::ofstream(options_.dataset_name)
      << R"({"prompt": "of", "chosen": "[{\"role\": \"assistant\", \"content\": \"yes\"}]", )"
      << R"("rejected": "no"})" << "\n";
  const auto tokenizer = text::open_tokenizer(test::kTinyChat);
  const auto text_of = [&](const std::vector<std::int32_t>& ids) { return tokenizer->decode(ids); };
  EXPECT_NE(text_of(read(0)->row(0).chosen).find(list), std::string::npos);
  options_.dataset_name = folder_.path() + "/train.csv";
  std::ofstream(options_.dataset_name)
      << "prompt,chosen,rejected\n"
      << R"("[{""role"": ""user"", ""content"": ""of""}]","[{""role"": ""assistant"", ""content"": ""yes""}]",)"
      << R"("[{""role"": ""assistant"", ""content"": ""no""}]")" << "\n";
  EXPECT_EQ(text_of(read(0)->row(0).chosen), "yes");
}

}  // namespace
}  // namespace tessera::data
