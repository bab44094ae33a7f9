#pragma once
// Folders of `save_to_disk` of the library `datasets`.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/split_files.h"

namespace tessera::data {

/// The files of the splits, as dataset_dict.json and the state.json of each split list them: beside these files may be
/// those of an earlier save. Without dataset_dict.json all rows are the first split. False where the folder is no such.
/// DataError: the first split or a listed file is missing, a state.json is malformed or has an order of rows that is
/// not followed. words_for: the names that stand for a split, its own first.
bool choose_saved(const std::filesystem::path& folder, std::vector<SplitFiles>& splits,
                  const std::function<std::vector<std::string>(const std::string&)>& words_for);

}  // namespace tessera::data
