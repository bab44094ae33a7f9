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
  EXPECT_EQ(downloaded().size(), 3u);
  EXPECT_EQ(read_file(snapshot() + "/data/test-00000-of-00001.jsonl"), "about data/test-00000-of-00001.jsonl");
}

TEST_F(SplitFilesOnTheHub, AConfigurationIsAFolder) {
  put({"en/train-00000-of-00001.parquet", "en/test/0000.parquet", "de/train-00000-of-00001.parquet"});
  EXPECT_EQ(find("train,test", "en"), (Names{"train: en/train-00000-of-00001.parquet", "test: en/test/0000.parquet"}));
  EXPECT_EQ(downloaded().size(), 2u);
  EXPECT_SAYS(error("train"), "its data files lie in: de, en, en/test; --dataset_config_name chooses a folder");
  EXPECT_SAYS(error("train", "fr"), "--dataset_config_name chooses a folder");
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
