#pragma once
// What a data set's card (README.md) says of its files: the list `configs` in the YAML between its first two lines of
// three dashes, as the library `datasets` reads it.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct CardSplit {
  std::string name;                   // "train"
  std::vector<std::string> patterns;  // "data/train-*", below the data set's folder
};

struct CardConfig {
  std::string name;
  std::string folder;             // data_dir, with a slash at its end; empty: the data set's
  std::vector<CardSplit> splits;  // empty: files are found by their names
  bool is_default = false;        // the one that is taken where none is named
};

/// Empty: there is no such file, or it says nothing of files. DataError where it says it in another form.
std::vector<CardConfig> read_dataset_card(const std::string& file);

/// `*`, `?` and `[...]` stand for characters of one name, `**` for any folders. What begins with a dot, and a folder
/// that begins with two underscores, is meant only where the pattern begins so.
bool matches_pattern(std::string_view pattern, std::string_view path);

}  // namespace tessera::data
