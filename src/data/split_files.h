#pragma once
// Which files hold which split.
#include <string>
#include <vector>

namespace tessera::data {

struct SplitFiles {
  std::string name;                // "train"
  std::vector<std::string> files;  // empty: there is no such split
};

struct DatasetName {
  std::string name;    // a file, a folder, or org/name[@revision] on the Hub
  std::string config;  // one of several configurations: as the card (README.md) describes it, or a folder; empty: the
                       // card's default, or the whole
  std::vector<std::string> files = {};  // patterns of its files, below the configuration's folder; empty: by the splits
};

/// The names in "train,test". ConfigError for an empty or doubled one.
std::vector<std::string> split_names(const std::string& splits);

/// "train,test" of a file (it is the first split, the others are empty), a folder, or a name on the Hub, of which those
/// files are downloaded and no others. Of a folder that save_to_disk wrote what its own lists say (saved_dataset.h).
/// Where the data set's card says which files it has (dataset_card.h), those; else by the rules of the library
/// `datasets` (see SplitFinder in split_files.cc): data/train-00000-of-00002.json, else all files below folders named
/// train, else all files with that word in their names; other words stand for a split as well (training; valid, dev,
/// val; testing, eval, evaluation). Where no file or folder has the name of a split, all files are the first. DataError
/// when the first split has no file (lists what is there), when a file is a zip archive, when a split mixes kinds of
/// files; ConfigError for an empty or doubled name.
std::vector<SplitFiles> find_split_files(const DatasetName& dataset, const std::string& splits);

/// The files on disk that a path names, or that a pattern such as rows/**/part-*.json means (matches_pattern in
/// dataset_card.h), in the order of their names. Empty: there are none.
std::vector<std::string> find_files(const std::string& pattern);

}  // namespace tessera::data
