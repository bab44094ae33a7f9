#pragma once
// Which files hold which split.
#include <string>
#include <vector>

namespace tessera::data {

struct SplitFiles {
  std::string name;                // "train"
  std::vector<std::string> files;  // in the order of their names; empty: there is no such split
};

struct DatasetName {
  std::string name;    // a file, a folder, or org/name[@revision] on the Hub
  std::string config;  // one of several configurations: as the card (README.md) describes it, or a folder; empty: the
                       // card's default, or the whole
};

/// Where the data set's card says which files it has (dataset_card.h), those. Else "train,test" of a file (it is the
/// first split, the others are empty) or a folder: files named after the split (train.jsonl, train-00000-of-00002.json,
/// my_train.csv; in the folder, in its data/ or in a folder train/), or after another word that `datasets` takes for it
/// (dev.jsonl for validation). A folder with one data file is the first split. Of a name on the Hub those files are
/// downloaded, and no others. DataError when the first split has no file (lists what is there), when a split mixes
/// kinds of files; ConfigError for an empty or doubled name.
std::vector<SplitFiles> find_split_files(const DatasetName& dataset, const std::string& splits);

/// For data sets of pairs: the file or folder itself; of a name on the Hub its folder with the files that hold rows.
std::string find_pair_files(const std::string& name);

}  // namespace tessera::data
