// Which files of a data set hold which split: in a folder here, and in a repository on the Hub.
#include "data/split_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "support/hub_server.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using test::HubServer;
using Names = std::vector<std::string>;

/// The files of all splits, as paths below `root`.
Names below(const std::string& root, const std::vector<SplitFiles>& splits) {
  Names out;
  for (const auto& split : splits)
    for (const auto& file : split.files)
      out.push_back(split.name + ": " + fs::path(file).lexically_relative(root).string());
  return out;
}

class SplitFilesHere : public ::testing::Test {
 protected:
  void put(const std::string& path) {
    fs::create_directories(fs::path(folder_.path() + "/" + path).parent_path());
    std::ofstream(folder_.path() + "/" + path) << "{}\n";
  }
  Names find(const std::string& splits, const std::string& config = "") {
    return below(folder_.path(), find_split_files({folder_.path(), config}, splits));
  }
  test::TempFolder folder_{"split_files"};
};

TEST_F(SplitFilesHere, AConfigurationIsAFolderOfItsOwn) {
  for (const char* path : {"en/train.jsonl", "en/test.jsonl", "de/data/train-00000-of-00001.jsonl"}) put(path);
  EXPECT_EQ(find("train,test", "en"), (Names{"train: en/train.jsonl", "test: en/test.jsonl"}));
  EXPECT_EQ(find("train", "de"), (Names{"train: de/data/train-00000-of-00001.jsonl"}));
  EXPECT_THROW(find("train", "fr"), DataError);
}

TEST_F(SplitFilesHere, OtherWordsOfDatasetsStandForASplitWhereItsOwnIsMissing) {
  for (const char* path : {"train.jsonl", "dev.jsonl", "eval.jsonl"}) put(path);
  EXPECT_EQ(find("train,validation,test"), (Names{"train: train.jsonl", "validation: dev.jsonl", "test: eval.jsonl"}));
  put("validation.jsonl");
  EXPECT_EQ(find("train,validation"), (Names{"train: train.jsonl", "validation: validation.jsonl"}));
}

/// As the library `datasets` finds them: these are its files for this card
/// (load_dataset_builder(...).config.data_files).
const char* const kCardText = R"(---
license: mit
configs:
- config_name: small
  default: true
  data_files:
  - split: train
    path:
    - part0/*.jsonl
    - part1/**
  - split: validation
    path: held_out/rows-?.jsonl
- config_name: large
  data_files: "**/big_[ab].jsonl"
- config_name: plain
  data_dir: plain
tags:
- a: [of another form, "
---
# Rows
)";

class CardsHere : public SplitFilesHere {
 protected:
  void SetUp() override {
    for (const char* path : {"part0/a.jsonl", "part0/b.jsonl", "part0/notes.md", "part0/deep/c.jsonl", "part1/d.jsonl",
                             "part1/deep/e.jsonl", "part1/.hidden/f.jsonl", "part1/__made/g.jsonl",
                             "held_out/rows-1.jsonl", "held_out/rows-10.jsonl", "x/y/big_a.jsonl", "big_b.jsonl",
                             "big_c.jsonl", "plain/train.jsonl", "plain/test.jsonl", "train.jsonl"})
      put(path);
    write_file_atomically(folder_.path() + "/README.md", kCardText);
  }
  std::string error(const std::string& card) {
    write_file_atomically(folder_.path() + "/README.md", card);
    try {
      find("train");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(CardsHere, ItsPatternsSayWhichFilesASplitHas) {
  EXPECT_EQ(find("train,validation"), (Names{"train: part0/a.jsonl", "train: part0/b.jsonl", "train: part1/d.jsonl",
                                             "train: part1/deep/e.jsonl", "validation: held_out/rows-1.jsonl"}));
  EXPECT_EQ(find("train", "large"), (Names{"train: big_b.jsonl", "train: x/y/big_a.jsonl"}));
  EXPECT_EQ(find("train,test", "plain"), (Names{"train: plain/train.jsonl", "test: plain/test.jsonl"}));
}

TEST_F(CardsHere, WhatItDoesNotSayIsNamed) {
  const std::string two =
      "---\nconfigs:\n- config_name: a\n  data_files: x*.jsonl\n- config_name: b\n  data_files: y\n---\n";
  EXPECT_SAYS(error(two), "several configurations; choose one with --dataset_config_name: a, b");
  const std::string one = "---\nconfigs:\n- config_name: a\n  data_files:\n  - split: rest\n    path: b*\n---\n";
  EXPECT_SAYS(error(one), "the card (README.md) has for configuration 'a': rest (b*)");
  EXPECT_SAYS(error("---\nx: 1\nconfigs:\n- data_files: a\n---\n"), "README.md:4: the card's configuration has no");
  EXPECT_SAYS(error("---\nconfigs:\n- config_name: a\n  data_files: https://a/b.csv\n---\n"), "is not in the data set");
  EXPECT_EQ(error("no card"), "");
}

class SplitFilesOnTheHub : public ::testing::Test {
 protected:
  SplitFilesOnTheHub() {
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
    ::setenv("HF_ENDPOINT", server_.url().c_str(), 1);
    ::setenv("HF_HUB_OFFLINE", "0", 1);
  }
  ~SplitFilesOnTheHub() override {
    ::unsetenv("HF_HOME");
    ::unsetenv("HF_ENDPOINT");
    ::setenv("HF_HUB_OFFLINE", "1", 1);
  }
  void put(const Names& paths) {
    HubServer::Files files;
    for (const auto& path : paths) files[path] = {"about " + path};
    commit_ = server_.put("datasets", "org/rows", files);
  }
  std::string snapshot() const { return folder_.path() + "/hub/datasets--org--rows/snapshots/" + commit_; }
  Names find(const std::string& splits, const std::string& config = "") {
    return below(snapshot(), find_split_files({"org/rows", config}, splits));
  }
  std::string error(const std::string& splits, const std::string& config = "") {
    try {
      find(splits, config);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  Names downloaded() const {
    Names out;
    for (const auto& entry : fs::recursive_directory_iterator(snapshot()))
      if (!entry.is_directory()) out.push_back(entry.path().lexically_relative(snapshot()).string());
    std::sort(out.begin(), out.end());
    return out;
  }

  test::TempFolder folder_{"split_files_hub"};
  HubServer server_;
  std::string commit_;
};

TEST_F(SplitFilesOnTheHub, ThoseOfTheSplitsAreDownloadedAndNoOthers) {
  put({"README.md", "data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl",
       "data/test-00000-of-00001.jsonl", "data/unsupervised-00000-of-00001.jsonl"});
  EXPECT_EQ(find("train,test"),
            (Names{"train: data/train-00000-of-00002.jsonl", "train: data/train-00001-of-00002.jsonl",
                   "test: data/test-00000-of-00001.jsonl"}));
  EXPECT_EQ(downloaded().size(), 4u);  // the card, too
  EXPECT_EQ(read_file(snapshot() + "/data/test-00000-of-00001.jsonl"), "about data/test-00000-of-00001.jsonl");
}

TEST_F(SplitFilesOnTheHub, AConfigurationIsAFolder) {
  put({"en/train-00000-of-00001.parquet", "en/test/0000.parquet", "de/train-00000-of-00001.parquet"});
  EXPECT_EQ(find("train,test", "en"), (Names{"train: en/train-00000-of-00001.parquet", "test: en/test/0000.parquet"}));
  EXPECT_EQ(downloaded().size(), 2u);
  EXPECT_SAYS(error("train"), "its data files lie in: de, en, en/test; --dataset_config_name chooses a folder");
  EXPECT_SAYS(error("train", "fr"), "--dataset_config_name chooses a folder");
}

TEST_F(SplitFilesOnTheHub, TheCardIsReadFirst) {
  HubServer::Files files{{"README.md", {kCardText}}};
  for (const char* path :
       {"part0/a.jsonl", "part1/b.jsonl", "held_out/rows-1.jsonl", "train.jsonl", "plain/train.jsonl"})
    files[path] = {"{}"};
  commit_ = server_.put("datasets", "org/rows", files);
  EXPECT_EQ(find("train,validation"),
            (Names{"train: part0/a.jsonl", "train: part1/b.jsonl", "validation: held_out/rows-1.jsonl"}));
  EXPECT_EQ(downloaded().size(), 4u);
  EXPECT_EQ(find("train", "plain"), (Names{"train: plain/train.jsonl"}));
  EXPECT_SAYS(error("train", "huge"),
              "none is named 'huge'; choose one with --dataset_config_name: small, large, plain");
}

TEST_F(SplitFilesOnTheHub, OneFileIsTheFirstSplit) {
  put({"README.md", "rows.csv"});
  EXPECT_EQ(find("train,test"), (Names{"train: rows.csv"}));
}

TEST_F(SplitFilesOnTheHub, ALoadingScriptIsRefusedByName) {
  put({"README.md", "rows.py"});
  EXPECT_SAYS(error("train"), "it is made by a loading script (rows.py), which is not run here");
  EXPECT_SAYS(error("train"), "org/rows@refs/convert/parquet");
}

TEST_F(SplitFilesOnTheHub, AMissingDataSetIsNamed) {
  EXPECT_SAYS(error("train"), "'org/rows' is neither a file or folder here nor a data set at " + server_.url());
}

TEST_F(SplitFilesOnTheHub, OfPairsTheTablesAtTheTopAreDownloaded) {
  put({"README.md", "x_train.csv", "x_val.csv", "deep/other.csv", "x.parquet"});
  EXPECT_EQ(find_pair_files("org/rows"), snapshot());
  EXPECT_EQ(downloaded(), (Names{"x_train.csv", "x_val.csv"}));
  put({"x.parquet"});
  EXPECT_THROW(find_pair_files("org/rows"), DataError);
}

}  // namespace
}  // namespace tessera::data
