// Which files of a data set hold which split: in a folder here, and in a repository on the Hub.
#include "data/split_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "data/dataset_card.h"
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

/// What load_dataset_builder(folder).config.data_files says of these folders.
TEST_F(SplitFilesHere, FilesHaveTheirSplitsNameAsDatasetsLooksForIt) {
  for (const char* path : {"train.jsonl", "dev.jsonl", "eval.jsonl", "train2.jsonl", "pretrain.jsonl", "a train.jsonl",
                           "deep/er/my_train-set.jsonl", "training.jsonl", "validation.jsonl", ".hidden/train.jsonl",
                           "config.json", "notes.jsonl"})
    put(path);
  EXPECT_EQ(
      find("train,validation,test"),
      (Names{"train: train.jsonl", "train: train2.jsonl", "train: a train.jsonl", "train: deep/er/my_train-set.jsonl",
             "train: training.jsonl", "validation: validation.jsonl", "validation: dev.jsonl", "test: eval.jsonl"}));
}

TEST_F(SplitFilesHere, FoldersWithASplitsNameComeBeforeFiles) {
  for (const char* path :
       {"train.jsonl", "x/train/b.jsonl", "x/train/deep/a.jsonl", "val_1/c.jsonl", "x/train/deep/test.jsonl"})
    put(path);
  EXPECT_EQ(find("train,validation"), (Names{"train: x/train/b.jsonl", "train: x/train/deep/a.jsonl",
                                             "train: x/train/deep/test.jsonl", "validation: val_1/c.jsonl"}));
  EXPECT_EQ(find("train,test").size(), 3U);  // rows that are trained on are no test
}

TEST_F(SplitFilesHere, NumberedFilesInDataComeBeforeAll) {
  for (const char* path : {"train.jsonl", "train/a.jsonl", "data/train-00000-of-00002-0a1b.jsonl",
                           "data/train-00001-of-00002-0a1b.jsonl", "data/train_sft-00000-of-00001.jsonl", "test.jsonl"})
    put(path);
  EXPECT_EQ(find("train,test"),
            (Names{"train: data/train-00000-of-00002-0a1b.jsonl", "train: data/train-00001-of-00002-0a1b.jsonl"}));
  EXPECT_EQ(find("train_sft"), (Names{"train_sft: data/train_sft-00000-of-00001.jsonl"}));
  EXPECT_THROW(find("train_gen"), DataError);
}

TEST_F(SplitFilesHere, FilesOfNoSplitAreTheFirst) {
  for (const char* path : {"b.jsonl", "deep/a.jsonl", "README.txt", "dataset_info.json", "__made/c.jsonl"}) put(path);
  EXPECT_EQ(find("train,test"), (Names{"train: b.jsonl", "train: deep/a.jsonl"}));
  put("test.jsonl");
  EXPECT_THROW(find("train,test"), DataError);
}

TEST_F(SplitFilesHere, RowsThatSaveToDiskWroteAreFound) {
  for (const char* path : {"dataset_dict.json", "train/data-00000-of-00001.arrow", "train/dataset_info.json",
                           "train/state.json", "train/cache-0a1b.arrow", "test/data-00000-of-00001.arrow"})
    put(path);
  EXPECT_EQ(find("train,test"),
            (Names{"train: train/data-00000-of-00001.arrow", "test: test/data-00000-of-00001.arrow"}));
}

TEST_F(SplitFilesHere, CompressedFilesAreFilesOfRowsAndArchivesAreRefusedByName) {
  for (const char* path : {"train.jsonl", "train-2.jsonl.gz", "train-3.json.zst", "test.csv.zip", "train.tar.gz"})
    put(path);
  EXPECT_EQ(find("train"), (Names{"train: train-2.jsonl.gz", "train: train-3.json.zst", "train: train.jsonl"}));
  try {
    find("train,test");
    FAIL() << "some rows of the split were left out";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "test.csv.zip: this file of the split 'test' is a zip archive");
  }
  try {
    (void)find_split_files({folder_.path() + "/test.csv.zip", ""}, "train");
    FAIL() << "a file that is named itself";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "is a zip archive");
  }
}

TEST_F(SplitFilesHere, AConfigurationThatIsNotThereIsNamedWithTheFilesThatAre) {
  for (const char* path : {"train.jsonl", "de/train.jsonl", "notes.md"}) put(path);
  EXPECT_EQ(find("train", "de"), (Names{"train: de/train.jsonl"}));
  try {
    find("train", "fr");
    FAIL() << "rows of another configuration";
  } catch (const DataError& e) {
    EXPECT_SAYS(std::string(e.what()), "no folder 'fr' with data files, which --dataset_config_name names");
    EXPECT_SAYS(std::string(e.what()), "the data files here are: de/train.jsonl, train.jsonl");
  }
}

TEST_F(SplitFilesHere, LinksToFoldersAreFollowedButNotInCircles) {
  put("x/train/a.jsonl");
  fs::create_directory_symlink(folder_.path(), folder_.path() + "/x/around");
  fs::create_directory_symlink(folder_.path() + "/x/train", folder_.path() + "/x/test");
  EXPECT_EQ(find("train,test"), (Names{"train: x/train/a.jsonl", "test: x/test/a.jsonl"}));
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
- config_name: here
  data_dir: .
- config_name: twice
  data_files: [big_b.jsonl, "big_*"]
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
  EXPECT_EQ(find("train", "here"), (Names{"train: plain/train.jsonl", "train: train.jsonl"}));
  EXPECT_EQ(find("train", "twice"), (Names{"train: big_b.jsonl", "train: big_b.jsonl", "train: big_c.jsonl"}));
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

// Backtracking would take longer than the universe has.
TEST(Pattern, ManyFoldersInARowAreOneSearch) {
  std::string pattern, path;
  for (int i = 0; i < 60; ++i) pattern += "**/";
  for (int i = 0; i < 60; ++i) path += "a/";
  EXPECT_TRUE(matches_pattern(pattern + "x.jsonl", path + "x.jsonl"));
  EXPECT_FALSE(matches_pattern(pattern + "y.jsonl", path + "x.jsonl"));
}

TEST(Pattern, TwoUnderscoresHideFoldersAndNoFiles) {
  EXPECT_TRUE(matches_pattern("**", "a/__x.jsonl"));
  EXPECT_TRUE(matches_pattern("*.jsonl", "__x.jsonl"));
  EXPECT_FALSE(matches_pattern("**/*.jsonl", "__a/x.jsonl"));
  EXPECT_TRUE(matches_pattern("__a/*.jsonl", "__a/x.jsonl"));
  EXPECT_FALSE(matches_pattern("**", "a/.x.jsonl"));
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
  put({"en/train/0000.parquet", "en/test/0000.parquet", "de/train-00000-of-00001.parquet"});
  EXPECT_EQ(find("train,test", "en"), (Names{"train: en/train/0000.parquet", "test: en/test/0000.parquet"}));
  EXPECT_EQ(downloaded().size(), 2u);
  EXPECT_SAYS(error("more"), "its data files lie in: de, en/test, en/train; --dataset_config_name chooses a folder");
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

}  // namespace
}  // namespace tessera::data
