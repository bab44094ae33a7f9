// WikiHow's files as the loader of the Python stack reads, cleans and tokenises them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/collate.h"
#include "data/csv_reader.h"
#include "data/wikihow.h"
#include "support/goldens.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

using Json = nlohmann::json;

std::string folder() {
  return test::goldens("I_wikihow").string();
}

Json expected() {
  return Json::parse(read_file(folder() + "/expect.json"));
}

/// Ids and mask of a row, padded as the tutorial does it.
std::pair<Json, Json> padded(const std::vector<std::int32_t>& ids, std::size_t length) {
  Json out = ids, mask = std::vector<int>(ids.size(), 1);
  while (out.size() < length) {
    out.push_back(0);
    mask.push_back(0);
  }
  return {out, mask};
}

void expect_tokens(std::vector<TextPair> rows, const Json& reference, const Json& lengths) {
  const auto tokenizer = text::open_tokenizer(test::goldens_tokenizer("t5"));
  for (auto& row : rows) {
    row.source = clean_wikihow(row.source);
    row.target = clean_wikihow(row.target);
  }
  const auto tokens = tokenize(rows, *tokenizer, {.max_source_length = lengths[0], .max_target_length = lengths[1]});
  ASSERT_EQ(rows.size(), reference.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].source, reference[i]["clean_text"].get<std::string>()) << i;
    EXPECT_EQ(rows[i].target, reference[i]["clean_headline"].get<std::string>()) << i;
    const auto [source, source_mask] = padded(tokens.rows[i].source, lengths[0]);
    const auto [target, target_mask] = padded(tokens.rows[i].target, lengths[1]);
    EXPECT_EQ(source, reference[i]["source_ids"]) << i;
    EXPECT_EQ(source_mask, reference[i]["source_mask"]) << i;
    EXPECT_EQ(target, reference[i]["target_ids"]) << i;
    EXPECT_EQ(target_mask, reference[i]["target_mask"]) << i;
  }
}

TEST(WikiHowGolden, SplitsAndTokensAreThoseOfTheReference) {
  if (!std::filesystem::exists(folder())) return;
  const Json want = expected();
  const WikiHow got = read_wikihow({.data_dir = folder(), .train_rows = 0, .validation_rows = 0});
  EXPECT_EQ(got.train_size, static_cast<std::int64_t>(want["train"].size()));
  EXPECT_EQ(got.columns, 3);
  for (const auto& [rows, name] : {std::pair{&got.train, "train"}, std::pair{&got.validation, "val"}}) {
    ASSERT_EQ(rows->size(), want[name].size());
    for (std::size_t i = 0; i < rows->size(); ++i) {
      EXPECT_EQ((*rows)[i].source, want[name][i]["text"].get<std::string>()) << i;
      EXPECT_EQ((*rows)[i].target, want[name][i]["headline"].get<std::string>()) << i;
    }
    expect_tokens(*rows, want[name], want["lengths"]);
  }
}

TEST(WikiHowGolden, FieldsAsTheyAreInTheFileCleanAndTokeniseAsTheReference) {
  if (!std::filesystem::exists(folder())) return;
  const Json want = expected();
  const std::string text = read_file(folder() + "/wikihowAll.csv");
  CsvReader csv("wikihowAll.csv", text, CsvDialect::kPython);
  std::vector<std::string> fields;
  std::int64_t line = 0;
  csv.next(fields, line);
  const auto names = fields;
  const auto column = [&](const std::string& name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  std::vector<TextPair> rows;
  while (csv.next(fields, line)) {
    if (fields.size() == names.size())
      rows.push_back({fields[column("text")], fields[column("headline")], "wikihowAll.csv", line});
  }
  expect_tokens(rows, want["all_rows"], want["lengths"]);
}

}  // namespace
}  // namespace tessera::data
