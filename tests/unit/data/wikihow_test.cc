// WikiHow's files: limits, other columns, damaged ones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/file.h"
#include "data/csv_reader.h"
#include "data/wikihow.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

const std::string kWikiHow = std::string(TESSERA_TEST_DATA) + "/wikihow";

TEST(WikiHow, LimitsKeepTheFirstRowsAndCountAll) {
  const WikiHow all = read_wikihow({.data_dir = kWikiHow, .train_rows = 0, .validation_rows = 0});
  const WikiHow few = read_wikihow({.data_dir = kWikiHow, .train_rows = 5, .validation_rows = 2});
  ASSERT_EQ(few.train.size(), 5u);
  ASSERT_EQ(few.validation.size(), 2u);
  EXPECT_EQ(few.train[4].source, all.train[4].source);
  EXPECT_EQ(few.train_size, all.train_size);
  EXPECT_EQ(few.validation_size, all.validation_size);
}

class WikiHowFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "wikihow_" + std::to_string(::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  std::string failure(const WikiHowOptions& options) {
    try {
      read_wikihow(options);
    } catch (const DataError& e) {
      return e.what();
    }
    return "nothing was thrown";
  }
  std::string folder_;
};

TEST_F(WikiHowFiles, WithoutListsTheFirstRowsTrainAndTheNextValidate) {
  write("wikihowAll.csv",
        "headline,title,text\n\"a.,\nb\",t1,\"one two.\n\n,three\"\nc,t2,a longer text\nonly,two\nd,t3,yet another\n");
  const WikiHow got = read_wikihow({.data_dir = folder_, .train_rows = 1, .validation_rows = 1});
  ASSERT_EQ(got.train.size(), 1u);
  EXPECT_EQ(got.train[0].target, "a.\nb");
  EXPECT_EQ(got.train[0].source, "one two.\nthree");
  EXPECT_EQ(got.train[0].line, 2);
  ASSERT_EQ(got.validation.size(), 1u);
  EXPECT_EQ(got.validation[0].source, "a longer text");
  EXPECT_EQ(read_wikihow({.data_dir = folder_ + "/wikihowAll.csv", .train_rows = 0}).train.size(), 3u);
}

TEST_F(WikiHowFiles, ParagraphsHaveTheirOwnColumnsAndLists) {
  write("wikihowSep.csv",
        "overview,headline,text,sectionLabel,title\no,Wait,Wait for ten minutes.,Steps,How to Wait\n"
        "o,Go,Go on to the next step.,Steps, How  to Go \nx,y,z\n");
  write("sep_train.txt", "HowtoGo\n");
  write("sep_val.txt", "HowtoWait\r\n");
  const WikiHow got = read_wikihow({.data_dir = folder_, .part = WikiHowPart::kSep});
  ASSERT_EQ(got.train.size(), 1u);
  EXPECT_EQ(got.train[0].target, "Go");
  ASSERT_EQ(got.validation.size(), 1u);
  EXPECT_EQ(got.validation[0].target, "Wait");
  EXPECT_EQ(got.columns, 5);
}

TEST_F(WikiHowFiles, WhatIsWrongIsNamed) {
  EXPECT_NE(failure({.data_dir = folder_}).find("wikihowAll.csv"), std::string::npos);
  write("wikihowSep.csv", "overview,headline,text,sectionLabel,title\n");
  EXPECT_NE(failure({.data_dir = folder_}).find("--dataset_part sep"), std::string::npos);
  write("wikihowAll.csv", "headline,title,article\n");
  EXPECT_NE(failure({.data_dir = folder_}).find("found headline, title, article"), std::string::npos);
  write("wikihowAll.csv", "headline,title,text\n");
  EXPECT_NE(failure({.data_dir = folder_}).find("no row to train on"), std::string::npos);
  write("wikihowAll.csv", "headline,title,text\na,b,long enough\nc,d,\"\xFF long enough\"\n");
  EXPECT_NE(failure({.data_dir = folder_}).find("wikihowAll.csv:3"), std::string::npos);
  write("all_val.txt", "b\n");
  EXPECT_NE(failure({.data_dir = folder_}).find("all_train.txt is missing"), std::string::npos);
}

// What Python's csv.reader gives for the same bytes, read as text.
TEST(CsvReader, ThePythonDialectTakesEverything) {
  struct Case {
    std::string text;
    std::vector<std::vector<std::string>> records;
  };
  const std::vector<Case> cases = {
      {"a,b\rc,d\r\n\n\re", {{"a", "b"}, {"c", "d"}, {"e"}}},
      {"\"x\"y\"z,\",1\n", {{"xy\"z", ",1\n"}}},
      {"a\"b,\"c\"\"d\"\n", {{"a\"b", "c\"d"}}},
      {"\"l1\r\nl2\rl3\nl4\",2", {{"l1\nl2\nl3\nl4", "2"}}},
      {"1,\"never closed\n2,3", {{"1", "never closed\n2,3"}}},
      {"\"", {{""}}},
      {"\"\",\n", {{"", ""}}},
      {",\n", {{"", ""}}},
  };
  for (const Case& c : cases) {
    CsvReader csv("f.csv", c.text, CsvDialect::kPython);
    std::vector<std::vector<std::string>> records;
    std::vector<std::string> fields;
    for (std::int64_t line = 0; csv.next(fields, line);) records.push_back(fields);
    EXPECT_EQ(records, c.records) << c.text;
  }
}

TEST(CsvReader, LinesAreCountedInBothDialects) {
  for (const CsvDialect dialect : {CsvDialect::kRfc4180, CsvDialect::kPython}) {
    CsvReader csv("f.csv", "a\n\"b\r\nc\"\n\n\nd\n", dialect);
    std::vector<std::string> fields;
    std::vector<std::int64_t> lines;
    for (std::int64_t line = 0; csv.next(fields, line);) lines.push_back(line);
    EXPECT_EQ(lines, (std::vector<std::int64_t>{1, 2, 6}));
  }
}

}  // namespace
}  // namespace tessera::data
