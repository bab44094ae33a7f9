#include "data/split_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "data/dataset_card.h"
#include "data/row_source.h"
#include "hub/fetch.h"
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

using Paths = std::vector<std::string>;  // below the data set's folder

/// Files of rows, not what stands beside them.
bool holds_rows(const fs::path& file) {
  std::string name = file.filename().string();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool other = name.starts_with("license") || name.starts_with("readme") || name == "dataset_infos.json" ||
                     name == "dataset_dict.json" || name == "state.json";
  return !other && is_data_file(file.string());
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

/// The split's name, then what `datasets` takes for it as well.
std::vector<std::string> words_for(const std::string& split) {
  if (split == "train") return {split, "training"};
  if (split == "validation") return {split, "valid", "dev", "val"};
  if (split == "test") return {split, "testing", "eval", "evaluation"};
  return {split};
}

constexpr std::array kPlaces{"", "data"};

Paths named_after(const Paths& all, const std::string& word) {
  const auto those = [&](const auto& take) {
    Paths out;
    std::copy_if(all.begin(), all.end(), std::back_inserter(out), take);
    return out;
  };
  for (const fs::path place : kPlaces) {
    auto out = those([&](const fs::path& f) { return f.parent_path() == place && is_named_after(f, word); });
    if (out.empty()) out = those([&](const fs::path& f) { return f.parent_path() == place / word; });
    if (!out.empty()) return out;
  }
  return {};
}

Paths files_of(const Paths& all, const std::string& split) {
  for (const auto& word : words_for(split))
    if (auto out = named_after(all, word); !out.empty()) return out;
  return {};
}

/// Where files_of() looks.
Paths list_folder(const fs::path& folder, const std::vector<SplitFiles>& splits) {
  Paths out;
  const auto add = [&](const fs::path& below) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(folder / below, code))
      if (!entry.is_directory() && holds_rows(entry.path())) out.push_back((below / entry.path().filename()).string());
  };
  for (const fs::path place : kPlaces) {
    add(place);
    for (const auto& split : splits)
      for (const auto& word : words_for(split.name)) add(place / word);
  }
  std::sort(out.begin(), out.end());
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

/// Fills in the files of all splits; false where the first has none.
bool choose(const Paths& all, std::vector<SplitFiles>& splits) {
  bool any = false;
  for (auto& split : splits) {
    split.files = files_of(all, split.name);
    check_one_kind(split);
    any = any || !split.files.empty();
  }
  if (!splits.front().files.empty()) return true;
  Paths top;
  std::copy_if(all.begin(), all.end(), std::back_inserter(top),
               [](const fs::path& file) { return !file.has_parent_path(); });
  if (any || top.size() != 1) return false;
  splits.front().files = top;
  return true;
}

[[noreturn]] void fail_empty(const std::string& name, const std::string& split, const std::string& found) {
  throw DataError(fmt::format("{}: no file for the split '{}' ({}.jsonl, {}-00000-of-00002.json ...); {}", name, split,
                              split, split, found),
                  name);
}

std::string found_in(const Paths& all) {
  return all.empty() ? "there is no data file (.jsonl, .json, .csv, .txt, .parquet) in this folder"
                     : fmt::format("the data files here are: {}", fmt::join(all, ", "));
}

constexpr const char* kCard = "README.md";

/// The one that the card describes under this name, or as its default. Null: the card says nothing of files, or the
/// name is that of a folder. ConfigError where one has to be named.
const CardConfig* described(const std::vector<CardConfig>& card, const DatasetName& dataset, const Paths& all) {
  std::vector<std::string> names;
  std::vector<const CardConfig*> found;
  for (const CardConfig& config : card) {
    names.push_back(config.name);
    if (dataset.config.empty() ? config.is_default : config.name == dataset.config) found.push_back(&config);
  }
  if (found.size() == 1 || card.empty()) return card.empty() ? nullptr : found.front();
  const bool is_folder = std::any_of(all.begin(), all.end(), [&](const std::string& file) {
    return file.starts_with(dataset.config + "/") || file.starts_with("data/" + dataset.config + "/");
  });
  if (!dataset.config.empty() && is_folder) return nullptr;
  throw ConfigError(
      fmt::format("'{}' has several configurations{}; choose one with --dataset_config_name: {}", dataset.name,
                  dataset.config.empty() ? "" : fmt::format(", and none is named '{}'", dataset.config),
                  fmt::join(names, ", ")),
      "dataset_config_name");
}

/// By the card's patterns; `all` are paths below the data set's folder.
void choose_by_card(const CardConfig& config, const DatasetName& dataset, const Paths& all,
                    std::vector<SplitFiles>& splits) {
  for (SplitFiles& split : splits) {
    const CardSplit* found = nullptr;
    for (const auto& word : words_for(split.name))
      for (const CardSplit& own : config.splits)
        if (!found && own.name == word) found = &own;
    for (const auto& pattern : found ? found->patterns : Paths())
      for (const auto& file : all)
        if (matches_pattern(pattern, file) && is_data_file(file) &&
            std::find(split.files.begin(), split.files.end(), file) == split.files.end())
          split.files.push_back(file);
    check_one_kind(split);
  }
  if (!splits.front().files.empty()) return;
  std::vector<std::string> said;
  for (const CardSplit& own : config.splits)
    said.push_back(fmt::format("{} ({})", own.name, fmt::join(own.patterns, ", ")));
  throw DataError(fmt::format("{}: no file for the split '{}'; the card ({}) has for configuration '{}': {}; --splits "
                              "chooses among them",
                              dataset.name, splits.front().name, kCard, config.name, fmt::join(said, "; ")),
                  dataset.name);
}

/// Every file below the folder.
Paths list_all(const fs::path& folder) {
  Paths out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) out.push_back(entry.path().lexically_relative(folder).string());
  std::sort(out.begin(), out.end());
  return out;
}

void choose_here(const DatasetName& dataset, std::vector<SplitFiles>& splits) {
  fs::path folder = dataset.name;
  const auto card = read_dataset_card((folder / kCard).string());
  const Paths below = card.empty() ? Paths() : list_all(folder);
  const CardConfig* config = described(card, dataset, below);
  if (config && !config->splits.empty()) {
    choose_by_card(*config, dataset, below, splits);
  } else {
    folder /= config ? config->folder : dataset.config;
    const Paths all = list_folder(folder, splits);
    if (!choose(all, splits)) fail_empty(folder.string(), splits.front().name, found_in(all));
  }
  for (auto& split : splits)
    for (auto& file : split.files) file = (folder / file).string();
}

/// Of a repository's files those of the configuration, as paths below its folder.
struct ConfigFiles {
  std::string folder;  // below the repository's; with a slash at its end, or empty
  Paths files;
};

ConfigFiles files_of_config(const Paths& all, const std::string& config) {
  ConfigFiles out;
  for (const std::string& folder : {config + "/", "data/" + config + "/"})
    for (const auto& file : all)
      if (!config.empty() && out.folder.empty() && file.starts_with(folder)) out.folder = folder;
  if (!config.empty() && out.folder.empty() && config != "default") return out;
  for (const auto& file : all)
    if (file.starts_with(out.folder) && holds_rows(file)) out.files.push_back(file.substr(out.folder.size()));
  return out;
}

/// Why a repository has no split of that name: folders to choose among, a script, or nothing of use.
std::string found_on_hub(const std::string& name, const Paths& all) {
  std::set<std::string> folders, scripts, data;
  for (const fs::path file : all) {
    if (!file.has_parent_path() && file.extension() == ".py") scripts.insert(file.string());
    if (!holds_rows(file)) continue;
    data.insert(file.string());
    if (file.has_parent_path()) folders.insert(file.parent_path().string());
  }
  if (data.empty() && !scripts.empty())
    return fmt::format(
        "it is made by a loading script ({}), which is not run here; the Hub may have it as Parquet: "
        "{}@refs/convert/parquet",
        fmt::join(scripts, ", "), name.substr(0, name.find('@')));
  if (!folders.empty())
    return fmt::format("its data files lie in: {}; --dataset_config_name chooses a folder, --splits the names",
                       fmt::join(folders, ", "));
  if (!data.empty()) return fmt::format("its data files are: {}", fmt::join(data, ", "));
  return "it has no data file that is read here (.jsonl, .json, .csv, .txt, .parquet)";
}

hub::RepositoryName name_on_hub(const std::string& name) {
  const auto parsed = hub::parse_name(hub::Kind::kDataset, name);
  if (parsed) return *parsed;
  throw DataError(fmt::format("{}: no such file or folder (expected training data), and no name on the Hub such as "
                              "org/name",
                              name),
                  name);
}

void choose_on_hub(const DatasetName& dataset, std::vector<SplitFiles>& splits) {
  std::string below;
  const auto select = [&](const Paths& all, const std::string& root) {
    const std::string card_file = root + "/" + kCard;
    if (!is_there(card_file) && std::binary_search(all.begin(), all.end(), kCard)) return Paths{kCard};
    const auto card = read_dataset_card(card_file);
    const CardConfig* config = described(card, dataset, all);
    for (auto& split : splits) split.files.clear();
    if (config && !config->splits.empty()) {
      choose_by_card(*config, dataset, all, splits);
    } else {
      const auto [folder, files] = files_of_config(all, config ? without_end_slashes(config->folder) : dataset.config);
      if (!choose(files, splits)) fail_empty(dataset.name, splits.front().name, found_on_hub(dataset.name, all));
      below = folder;
    }
    Paths out;
    for (const auto& split : splits)
      for (const auto& file : split.files) out.push_back(below + file);
    return out;
  };
  const fs::path root = hub::fetch(name_on_hub(dataset.name), {.select = select}, hub::settings_from_environment());
  for (auto& split : splits)
    for (auto& file : split.files) file = (root / (below + file)).string();
}

}  // namespace

std::vector<SplitFiles> find_split_files(const DatasetName& dataset, const std::string& splits) {
  std::vector<SplitFiles> out;
  for (auto& name : split_names(splits)) out.push_back({std::move(name), {}});
  const fs::path path(dataset.name);
  if (!is_there(path)) {
    choose_on_hub(dataset, out);
  } else if (fs::is_directory(path)) {
    choose_here(dataset, out);
  } else {
    require_option(
        dataset.config.empty(),
        fmt::format("--dataset_config_name chooses a folder of a data set, and '{}' is a file", dataset.name),
        "dataset_config_name");
    out.front().files = {dataset.name};
  }
  return out;
}

std::string find_pair_files(const std::string& name) {
  if (is_there(name)) return name;
  const auto select = [&](const Paths& all, const std::string&) {
    Paths out;
    std::copy_if(all.begin(), all.end(), std::back_inserter(out), [](const fs::path& file) {
      return !file.has_parent_path() && file.extension() != ".parquet" && holds_rows(file);
    });
    if (out.empty())
      throw DataError(fmt::format("'{}' has no file of pairs (.jsonl, .json, .csv, .txt) at its top; {}", name,
                                  found_on_hub(name, all)),
                      name);
    return out;
  };
  return hub::fetch(name_on_hub(name), {.select = select}, hub::settings_from_environment());
}

}  // namespace tessera::data
