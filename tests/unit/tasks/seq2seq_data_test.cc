// The rows of `tessera seq2seq`.
#include "tasks/seq2seq_data.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::tasks {
namespace {

TEST(Seq2SeqData, NamesTheFlagThatCutsTheLabelsOfAnEvaluation) {
  const test::TempFolder folder("seq2seq_data");
  const auto rows = folder.path() + "/rows.jsonl";
  write_file_atomically(rows, R"({"text": "a long input", "target": "one two three four"})"
                              "\n");
  Seq2SeqOptions options;
  options.dataset_path = options.validation_file = rows;
  options.max_length = 4;
  options.max_target_length = 10;
  const auto noted = [&] { return load_seq2seq_data(options, TESSERA_TEST_DATA "/tiny_chat").notes; };
  const auto says = [&](const std::vector<std::string>& notes, const std::string& note) {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  };
  const std::string trained = "1 label was cut at --max_target_length 10; a larger one keeps more of it";
  auto notes = noted();
  EXPECT_TRUE(says(notes, "2 inputs were cut at --max_length 4; a larger one keeps more of them"));
  EXPECT_TRUE(says(notes, trained));
  EXPECT_TRUE(says(notes, "1 evaluated label was cut at --max_target_length 10; a larger one keeps more of it"));
  options.val_max_target_length = 7;
  notes = noted();
  EXPECT_TRUE(says(notes, trained));
  EXPECT_TRUE(says(notes, "1 evaluated label was cut at --val_max_target_length 7; a larger one keeps more of it"));
}

}  // namespace
}  // namespace tessera::tasks
