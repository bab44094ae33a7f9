// Folders of save_to_disk: what load_from_disk reads of them, whatever else lies there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/split_files.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

class SavedDataset : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text = "") {
    fs::create_directories(fs::path(folder_.path() + "/" + path).parent_path());
    std::ofstream(folder_.path() + "/" + path) << text;
  }
  Paths files_of(const std::string& split, const std::string& config = "") {
    Paths out;
    const auto splits = find_split_files({folder_.path(), config}, split);
    for (const auto& file : splits.front().files)
      out.push_back(fs::path(file).lexically_relative(folder_.path()).string());
    return out;
  }
  std::string error(const std::string& split) {
    try {
      files_of(split);
    } catch (const DataError& e) {
      return e.what();
    }
    return "accepted";
  }
  test::TempFolder folder_{"saved_dataset"};
};

TEST_F(SavedDataset, FilesOfAnEarlierSaveWithMoreShardsAreNoRows) {
  for (const char* file : {"data-00000-of-00003.arrow", "data-00001-of-00003.arrow", "data-00000-of-00001.arrow"})
    put(file);
  put("state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": null})");
  EXPECT_EQ(files_of("train"), (Paths{"data-00000-of-00001.arrow"}));
  put("state.json", R"({"_data_files": [{"filename": "data-00000-of-00002.arrow"}]})");
  EXPECT_NE(error("train").find("state.json: lists 'data-00000-of-00002.arrow', which is not there"),
            std::string::npos);
  put("state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}],
                        "_indices_data_files": [{"filename": "indices.arrow"}]})");
  EXPECT_NE(error("train").find("another order"), std::string::npos);
  put("state.json", R"({"_data_files": ["data-00000-of-00001.arrow", 3]})");
  EXPECT_NE(error("train").find("'_data_files' is no list"), std::string::npos);
  put("state.json", R"({"_data_files": [{"filename": "../other.arrow"}]})");
  EXPECT_NE(error("train").find("'../other.arrow' is not the name of a file beside it"), std::string::npos);
  put("state.json", R"({"epoch": 3})");  // of another program
  EXPECT_EQ(files_of("train").size(), 3u);
}

TEST_F(SavedDataset, TheSplitsAreThoseOfTheDict) {
  put("dataset_dict.json", R"({"splits": ["train", "train_large", "data", "val"]})");
  for (const std::string split : {"train", "train_large", "data", "val"}) {
    put(split + "/data-00000-of-00001.arrow");
    put(split + "/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
  }
  put("test/data-00000-of-00001.arrow");  // of an earlier save
  for (const char* split : {"train", "train_large", "data"})
    EXPECT_EQ(files_of(split), (Paths{std::string(split) + "/data-00000-of-00001.arrow"}));
  EXPECT_EQ(files_of("validation"), (Paths{"val/data-00000-of-00001.arrow"}));
  EXPECT_NE(error("test").find("no split 'test'; the splits are train, train_large, data, val"), std::string::npos);
  const auto both = find_split_files({folder_.path(), ""}, "train,test");
  EXPECT_EQ(both.at(1).files, Paths{});
}

TEST_F(SavedDataset, AConfigurationIsAFolder) {
  put("en/dataset_dict.json", R"({"splits": ["train"]})");
  put("en/train/data-00000-of-00001.arrow");
  put("en/train/data-00001-of-00002.arrow");
  put("en/train/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
  EXPECT_EQ(files_of("train", "en"), (Paths{"en/train/data-00000-of-00001.arrow"}));
}

}  // namespace
}  // namespace tessera::data
