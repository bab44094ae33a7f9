// Several data sets one behind the other, as TRL's get_dataset() puts them together.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "data/fingerprint.h"
#include "data/mixture.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using Texts = std::vector<std::string>;

class Mixtures : public testing::Test {
 protected:
  /// Rows name1, name2, ...
  void SetUp() override {
    write("a/train.jsonl", "a", 10);
    write("a/test.jsonl", "t", 2);
    write("b/train-1.jsonl", "b", 3);
    write("b/train-2.jsonl", "c", 3);
    write("d.json", "d", 4);
  }
  void write(const std::string& file, const std::string& name, int rows) {
    const auto path = std::filesystem::path(in(file));
    std::filesystem::create_directories(path.parent_path());
    std::ofstream out(path);
    for (int i = 1; i <= rows; ++i) out << R"({"text": ")" << name << i << R"(", "other": ")" << name << "\"}\n";
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// $ stands for the test's folder.
  DatasetOptions mixture(std::string json) const {
    for (auto at = json.find('$'); at != std::string::npos; at = json.find('$')) json.replace(at, 1, folder_.path());
    DatasetOptions options;
    options.mixture.parts = parse_mixture(json);
    return options;
  }
  static Texts texts(const Split& split) {
    Texts out;
    for (std::size_t i = 0; i < split.files.size(); ++i) {
      const auto rows = open_rows(split, i, "text");
      for (SourceRow row; rows->next(row);) out.push_back(parse_row(row)->find(std::string_view("text"))->text());
    }
    return out;
  }
  Texts train(const std::string& json) const { return texts(find_splits(mixture(json)).front()); }
  std::string failure(const std::function<void()>& run) const {
    try {
      run();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  std::string failure(const std::string& json) const {
    return failure([&] { find_splits(mixture(json)); });
  }

  test::TempFolder folder_{"mixtures"};
};

TEST_F(Mixtures, HaveTheRowsOfTheirPartsOneBehindTheOther) {
  EXPECT_EQ(train(R"([{"path": "$/d.json"}, {"path": "$/b"}])"),
            (Texts{"d1", "d2", "d3", "d4", "b1", "b2", "b3", "c1", "c2", "c3"}));
  EXPECT_EQ(
      train(R"([{"path": "$/a", "split": "test"}, {"path": "$", "data_dir": "b", "data_files": "train-2.jsonl"}])"),
      (Texts{"t1", "t2", "c1", "c2", "c3"}));
  EXPECT_EQ(train(R"([{"path": "json", "data_files": {"train": ["$/b/train-*.jsonl"], "test": "no"}}])"),
            (Texts{"b1", "b2", "b3", "c1", "c2", "c3"}));
  write("e/deep/train-2.jsonl", "e", 1);  // ** is any number of folders
  EXPECT_EQ(train(R"([{"path": "json", "data_dir": "$", "data_files": ["**/train-2.jsonl", "d.js[n-p]n"]}])"),
            (Texts{"c1", "c2", "c3", "e1", "d1", "d2", "d3", "d4"}));
  EXPECT_EQ(find_splits(mixture(R"([{"path": "$/a"}])")).size(), 1u);  // as TRL: no split to evaluate on
}

// 10, 6 and 4 rows: the second part holds fewest for its share, so N = 6 / 0.5 = 12.
TEST_F(Mixtures, TakeFirstRowsByFractions) {
  EXPECT_EQ(
      train(R"([{"path": "$/a", "fraction": 1}, {"path": "$/b", "fraction": 2}, {"path": "$/d.json", "fraction": 1}])"),
      (Texts{"a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3", "d1", "d2", "d3"}));
  // N = 4 / 0.8 = 5: half of a row is rounded to even, as Python rounds: 0.5 -> 0.
  EXPECT_EQ(
      train(
          R"([{"path": "$/d.json", "fraction": 0.8}, {"path": "$/a", "fraction": 0.1}, {"path": "$/b", "fraction": 0.1}])"),
      (Texts{"d1", "d2", "d3", "d4"}));
  EXPECT_EQ(train(R"([{"path": "$/a", "fraction": 0}, {"path": "$/d.json", "fraction": 0.3}])"),
            (Texts{"d1", "d2", "d3", "d4"}));
}

// The rows that `datasets` 5.0.1 has: percentages to the nearest row, halves to the even one.
TEST_F(Mixtures, TakeSlicesOfSplits) {
  write("f.jsonl", "f", 5);
  const std::pair<const char*, Texts> cases[] = {
      {"[:2]", {"f1", "f2"}},
      {"[3:]", {"f4", "f5"}},
      {"[1:3]", {"f2", "f3"}},
      {"[-2:]", {"f4", "f5"}},
      {"[:-4]", {"f1"}},
      {"[:50%]", {"f1", "f2"}},
      {"[50%:]", {"f3", "f4", "f5"}},
      {"[:30%]", {"f1", "f2"}},
      {"[-30%:]", {"f4", "f5"}},
      {"[:]", {"f1", "f2", "f3", "f4", "f5"}},
      {"[:90]", {"f1", "f2", "f3", "f4", "f5"}},
  };
  for (const auto& [slice, rows] : cases) {
    const std::string split = std::string("train") + slice;
    EXPECT_EQ(train(R"([{"path": "$/f.jsonl", "split": ")" + split + "\"}]"), rows) << slice;
    DatasetOptions options;
    options.dataset_name = in("f.jsonl");
    options.splits = split;
    EXPECT_EQ(texts(find_splits(options).front()), rows) << slice;
  }
  // Over the borders of files and beside others, whose rows a fraction counts, too.
  EXPECT_EQ(train(R"([{"path": "$/b", "split": "train[2:5]"}, {"path": "$/a", "split": "test[1:]"}])"),
            (Texts{"b3", "c1", "c2", "t2"}));
  EXPECT_EQ(train(R"([{"path": "$/b", "split": "train[2:]", "fraction": 0.5}, {"path": "$/a", "fraction": 1}])"),
            (Texts{"b3", "c1", "c2", "c3", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}));
  EXPECT_EQ(train(R"([{"path": "json", "data_files": {"x": "$/f.jsonl"}, "split": "x[4:]"}])"), Texts{"f5"});
}

TEST_F(Mixtures, SlicesOfOneSplitAreBothSplits) {
  DatasetOptions options;
  options.dataset_name = in("b");
  options.splits = "train[:80%], train[80%:]";
  const auto splits = find_splits(options);
  ASSERT_EQ(splits.size(), 2u);
  EXPECT_EQ(texts(splits[0]), (Texts{"b1", "b2", "b3", "c1", "c2"}));
  EXPECT_EQ(texts(splits[1]), Texts{"c3"});
  Fingerprint first, second;
  add_split(first, splits[0]);
  add_split(second, splits[1]);
  EXPECT_NE(first.hex(), second.hex());
  for (const char* wrong :
       {"train[5]", "train[1:2", "train[a:b]", "train[:101%]", "[1:2]", "train[1:2:3]", "train[20%:2]"}) {
    options.splits = wrong;
    EXPECT_NE(failure([&] { find_splits(options); }).find("expected a slice of rows such as train[:1000]"),
              std::string::npos)
        << wrong;
  }
  options.splits = "train+test";
  EXPECT_NE(failure([&] { find_splits(options); }).find("not joined by +"), std::string::npos);
  EXPECT_NE(failure(R"([{"path": "$/d.json", "split": "train[1:"}])").find("--datasets: expected a slice"),
            std::string::npos);
}

// Rows of the library `datasets` 5.0.1 under numpy 2.4.6: shuffle(seed).select() of each part with a weight,
// shuffle(seed) of all, train_test_split(seed). Here they are in the order of the files.
TEST_F(Mixtures, OfTheHandbookHaveTheRowsThatItDraws) {
  write("x.jsonl", "x", 20);
  write("y.jsonl", "y", 10);
  const auto splits = [&](std::string json) {
    for (auto at = json.find('$'); at != std::string::npos; at = json.find('$')) json.replace(at, 1, folder_.path());
    DatasetOptions options;
    options.mixture = parse_handbook_mixture(json);
    return find_splits(options);
  };
  const auto share = splits(R"({"datasets": [{"id": "$/x.jsonl", "weight": 0.35}, {"id": "$/y.jsonl", "weight": null}],
                                "seed": 42, "test_split_size": 0.2})");
  EXPECT_EQ(texts(share[0]), (Texts{"x7", "x8", "x10", "x11", "x16", "y3", "y4", "y5", "y6", "y7", "y8", "y9", "y10"}));
  EXPECT_EQ(texts(share[1]), (Texts{"x13", "x15", "y1", "y2"}));
  const auto number = splits(R"({"datasets": [{"id": "$/x.jsonl", "weight": 0.55}, {"id": "$/y.jsonl", "weight": 1.0}],
                                 "seed": 7, "test_split_size": 3})");
  EXPECT_EQ(texts(number[0]), (Texts{"x2", "x4", "x7", "x11", "x13", "x14", "x16", "x17", "y1", "y2", "y3", "y4", "y5",
                                     "y6", "y7", "y8", "y9", "y10"}));
  EXPECT_EQ(texts(number[1]), (Texts{"x1", "x9", "x15"}));
  const auto without_test =
      splits(R"({"datasets": [{"id": "$/x.jsonl", "weight": 0.5}, {"id": "$/y.jsonl", "weight": 0.25}]})");
  ASSERT_EQ(without_test.size(), 1u);
  EXPECT_EQ(texts(without_test[0]),
            (Texts{"x3", "x4", "x5", "x7", "x9", "x11", "x12", "x14", "x17", "x20", "y5", "y7"}));
  EXPECT_EQ(texts(splits(R"({"datasets": [{"id": "$/b", "split": "train", "columns": ["text"]}]})")[0]),
            (Texts{"b1", "b2", "b3", "c1", "c2", "c3"}));
}

TEST_F(Mixtures, OfTheHandbookNameWhatIsWrong) {
  const auto said = [&](const std::string& json) { return failure([&] { parse_handbook_mixture(json); }); };
  const auto says = [&](const std::string& json, const std::string& what) {
    EXPECT_NE(said(json).find(what), std::string::npos) << said(json);
  };
  says("[]", "--dataset_mixture expects keys as in");
  says(R"({"datasets": [{"path": "x"}]})", "--dataset_mixture: entry 1: unknown key 'path'; there are id, config");
  says(R"({"datasets": [{"id": "x"}, {"weight": 0.5}]})", "entry 2: id is missing");
  says(R"({"datasets": [{"id": "x", "weight": 1.5}]})", "weight is a share of the rows, from 0 to 1, found 1.5");
  says(R"({"datasets": [{"id": "x"}], "seed": -1})", "expects a number as seed, found -1");
  says(R"({"datasets": [{"id": "x"}], "shuffle": true})", "has no key 'shuffle'");
}

TEST_F(Mixtures, HoldRowsOut) {
  auto options = mixture(R"([{"path": "$/a"}, {"path": "$/b"}])");
  const auto split = [&](double size, std::int64_t seed) {
    options.mixture.test_split_size = size;
    options.mixture.seed = seed;
    const auto splits = find_splits(options);
    EXPECT_EQ(splits.size(), 2u);
    auto all = texts(splits[0]);
    const auto test = texts(splits[1]);
    all.insert(all.end(), test.begin(), test.end());
    std::sort(all.begin(), all.end());
    options.mixture.test_split_size.reset();
    auto whole = texts(find_splits(options).front());
    std::sort(whole.begin(), whole.end());
    EXPECT_EQ(all, whole);  // each row once
    return test;
  };
  EXPECT_EQ(split(5, 42).size(), 5u);
  EXPECT_EQ(split(0.26, 42).size(), 5u);  // of 16, rounded up
  EXPECT_EQ(split(5, 42), split(5, 42));
  EXPECT_NE(split(5, 42), split(5, 43));
  for (const double size : {0.0, -1.0, 1.5, 16.0}) {
    options.mixture.test_split_size = size;
    EXPECT_NE(failure([&] { find_splits(options); }).find("of 16 rows: expected a share"), std::string::npos) << size;
  }
}

TEST_F(Mixtures, LeaveOtherColumnsOut) {
  const auto split = find_splits(mixture(R"([{"path": "$/d.json", "columns": ["text"]}, {"path": "$/a"}])")).front();
  const auto first_row = [&](std::size_t file) {
    SourceRow row;
    open_rows(split, file, "text")->next(row);
    return parse_row(row);
  };
  EXPECT_EQ(first_row(0)->find(std::string_view("other")), nullptr);
  EXPECT_NE(first_row(1)->find(std::string_view("other")), nullptr);
  EXPECT_NE(failure([&] { train(R"([{"path": "$/d.json", "columns": "texts"}])"); }).find("d.json:1: the row has none"),
            std::string::npos);
}

TEST_F(Mixtures, HaveTheirOwnNamesInTheCache) {
  const auto key = [&](const std::string& json, std::optional<double> held_out) {
    auto options = mixture(json);
    options.mixture.test_split_size = held_out;
    Fingerprint fingerprint;
    add_split(fingerprint, find_splits(options).front());
    return fingerprint.hex();
  };
  const std::string plain = R"([{"path": "$/d.json"}])", columns = R"([{"path": "$/d.json", "columns": ["text"]}])";
  const auto first = key(plain, {});
  EXPECT_EQ(first, key(plain, {}));
  EXPECT_NE(first, key(columns, {}));
  EXPECT_NE(first, key(plain, 1));
  EXPECT_NE(key(plain, 2), key(plain, 1));
}

TEST_F(Mixtures, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "expects a list such as"},
      {"[]", "expects a list such as"},
      {R"(["$/a"])", "entry 1: expected keys such as path"},
      {R"([{"path": "$/a"}, {"split": "train"}])", "entry 2: path is missing"},
      {R"([{"path": "$/a", "weight": 2}])", "entry 1: unknown key 'weight'; there are path"},
      {R"([{"path": 3}])", "entry 1: path expects a text, found 3"},
      {R"([{"path": "$/a", "fraction": "half"}])", "entry 1: fraction expects a number"},
      {R"([{"path": "$/a", "fraction": -1}])", "entry 1: fraction must not be negative"},
      {R"([{"path": "$/a", "fraction": 1}, {"path": "$/b"}])", "some entries have a fraction and others none"},
      {R"([{"path": "$/a", "fraction": 0}])", "every fraction is 0"},
      {R"([{"path": "$/a", "name": "x", "data_dir": "y"}])", "name and data_dir both"},
      {R"([{"path": "json"}])", "entry 1: path 'json' needs data_files"},
      {R"([{"path": "json", "data_files": "$/nowhere*.json"}])", "nowhere*.json: no such file"},
      {R"([{"path": "$/a", "data_files": "nowhere.json"}])", "no file is named nowhere.json"},
      {R"([{"path": "$/a", "data_files": {"test": "x"}}])", "data_files names no files of the split 'train'"},
      {R"([{"path": "$/a", "split": "validation"}])", "no file for the split 'validation'"},
  };
  for (const auto& [json, message] : cases) {
    const auto found = failure(json);
    EXPECT_NE(found.find(message), std::string::npos) << json << ": " << found;
  }
}

}  // namespace
}  // namespace tessera::data
