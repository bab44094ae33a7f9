#include "data/split_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/open_file.h"
#include "data/row_source.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split_names(const std::string& splits) {
  std::vector<std::string> names;
  std::string name;
  for (const char c : splits + ",") {
    if (c == ' ') continue;
    if (c != ',') {
      name += c;
      continue;
    }
    if (name.empty())
      throw ConfigError(fmt::format("--splits: expected names such as 'train,test', found '{}'", splits), "splits");
    if (std::find(names.begin(), names.end(), name) != names.end())
      throw ConfigError(fmt::format("--splits: '{}' is named twice in '{}'", name, splits), "splits");
    names.push_back(std::exchange(name, ""));
  }
  return names;
}

std::vector<fs::path> data_files(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    std::string name = entry.path().filename().string();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool other = name.starts_with("license") || name.starts_with("readme") || name == "dataset_infos.json" ||
                       name == "dataset_dict.json" || name == "state.json";
    if (!entry.is_directory() && !other && is_data_file(entry.path().string())) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool is_separator(char c) {
  return c == '-' || c == '_' || c == '.';
}

// train, train-00000-of-00002, my_train
bool is_named_after(const fs::path& file, const std::string& split) {
  const std::string stem = file.stem().string();
  if (stem == split) return true;
  if (stem.size() <= split.size()) return false;
  return (stem.starts_with(split) && is_separator(stem[split.size()])) ||
         (stem.ends_with(split) && is_separator(stem[stem.size() - split.size() - 1]));
}

std::vector<std::string> files_of(const fs::path& folder, const std::string& split) {
  std::vector<std::string> out;
  for (const fs::path& place : {folder, folder / "data"}) {
    for (const auto& file : data_files(place))
      if (is_named_after(file, split)) out.push_back(file.string());
    if (out.empty())
      for (const auto& file : data_files(place / split)) out.push_back(file.string());
    if (!out.empty()) return out;
  }
  return out;
}

void check_one_kind(const SplitFiles& split) {
  std::set<std::string> kinds;
  for (const auto& file : split.files) kinds.insert(fs::path(file).extension().string());
  if (kinds.size() > 1)
    throw DataError(fmt::format("split '{}' mixes files of several kinds ({}): {}; keep one kind", split.name,
                                fmt::join(kinds, ", "), fmt::join(split.files, ", ")),
                    split.files.front());
}

[[noreturn]] void fail_empty(const fs::path& folder, const std::string& split) {
  std::vector<std::string> names;
  for (const fs::path& place : {folder, folder / "data"})
    for (const auto& file : data_files(place)) names.push_back(fs::relative(file, folder).string());
  throw DataError(
      fmt::format("{}: no file for the split '{}' ({}.jsonl, {}-00000-of-00002.json ...); {}", folder.string(), split,
                  split, split,
                  names.empty() ? "there is no data file (.jsonl, .json, .csv, .txt, .parquet) in this folder"
                                : fmt::format("the data files here are: {}", fmt::join(names, ", "))),
      folder.string());
}

}  // namespace

std::vector<SplitFiles> find_split_files(const std::string& file_or_folder, const std::string& splits) {
  std::vector<SplitFiles> out;
  for (auto& name : split_names(splits)) out.push_back({std::move(name), {}});
  const fs::path path(file_or_folder);
  if (!is_there(path))
    throw DataError(fmt::format("{}: no such file or folder (expected training data)", file_or_folder), file_or_folder);
  if (!fs::is_directory(path)) {
    out.front().files = {file_or_folder};
    return out;
  }
  for (auto& split : out) {
    split.files = files_of(path, split.name);
    check_one_kind(split);
  }
  if (out.front().files.empty()) {
    const auto all = data_files(path);
    if (all.size() != 1) fail_empty(path, out.front().name);
    for (const auto& split : out)
      if (!split.files.empty()) fail_empty(path, out.front().name);
    out.front().files = {all.front().string()};
  }
  return out;
}

}  // namespace tessera::data
