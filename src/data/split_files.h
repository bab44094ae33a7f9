#pragma once
// Which files hold which split.
#include <string>
#include <vector>

namespace tessera::data {

struct SplitFiles {
  std::string name;                // "train"
  std::vector<std::string> files;  // in the order of their names; empty: there is no such split
};

/// "train,test" of a file (it is the first split, the others are empty) or a folder: files named after the split
/// (train.jsonl, train-00000-of-00002.json, my_train.csv; in the folder, in its data/ or in a folder train/). A folder
/// with one data file is the first split. DataError when the first split has no file (lists what is there), when a
/// split mixes kinds of files; ConfigError for an empty or doubled name.
std::vector<SplitFiles> find_split_files(const std::string& file_or_folder, const std::string& splits);

}  // namespace tessera::data
