#include "data/split_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <functional>
#include <set>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "data/dataset_card.h"
#include "data/row_source.h"
#include "data/saved_dataset.h"
#include "hub/fetch.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

using Paths = std::vector<std::string>;  // below the data set's folder

/// Files of rows in an archive, which is not read.
bool is_archived(const fs::path& file) {
  return file.extension() == ".zip" && is_data_file(file.stem().string());
}

/// Files of rows, not what stands beside them.
bool holds_rows(const fs::path& file) {
  std::string name = file.filename().string();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array<std::string_view, 5> kOthers{"config.json", "dataset_info.json", "dataset_infos.json",
                                                    "dataset_dict.json", "state.json"};
  const bool is_cache = name.starts_with("cache-") && name.ends_with(".arrow");  // of Dataset.map(), beside saved rows
  const bool is_prose = (name.starts_with("license") || name.starts_with("readme")) && name.ends_with(".txt");
  const bool other = is_cache || is_prose || std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end();
  return !other && (is_data_file(file.string()) || is_archived(file));
}

/// The split's name, then what `datasets` takes for it as well.
std::vector<std::string> words_for(const std::string& split) {
  if (split == "train") return {split, "training"};
  if (split == "validation") return {split, "valid", "dev", "val"};
  if (split == "test") return {split, "testing", "eval", "evaluation"};
  return {split};
}

/// In the order of the patterns. A file that two of them mean comes twice, as `datasets` has it.
Paths matching(const Paths& all, const std::vector<std::string>& patterns) {
  Paths out;
  for (const auto& pattern : patterns)
    for (const auto& file : all)
      if (matches_pattern(pattern, file)) out.push_back(file);
  return out;
}

constexpr std::string_view kShard = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";

/// Files whose folder (or own) name is a word of the split, or has it at its begin or end or between separators.
Paths named_after(const Paths& all, const std::string& split, std::initializer_list<const char*> forms) {
  std::vector<std::string> patterns;
  for (const auto& word : words_for(split))
    for (const char* form : forms) patterns.push_back(fmt::format(fmt::runtime(form), word, "-._ 0-9"));
  return matching(all, patterns);
}

/// The order in which `datasets` looks (its data_files.py): data/train-00000-of-00002.json; where no such files of any
/// split are there, below folders that are named after splits; where there are none, all files that are, wherever they
/// lie; else all files are for training.
class SplitFinder {
 public:
  explicit SplitFinder(const Paths& all) : all_(all) {
    is_numbered_ = !matching(all, {fmt::format("data/*{}", kShard)}).empty();
    const auto any = [&](const auto& find) {
      return !find("train").empty() || !find("validation").empty() || !find("test").empty();
    };
    has_folders_ = any([&](const char* split) { return below_folders(split); });
    has_names_ = is_numbered_ || has_folders_ || any([&](const char* split) { return files_named(split); });
  }
  bool has_names() const { return has_names_; }
  Paths files_of(const std::string& split) const {
    if (is_numbered_) return matching(all_, {fmt::format("data/{}{}", split, kShard)});
    return has_folders_ ? below_folders(split) : files_named(split);
  }

 private:
  Paths below_folders(const std::string& split) const {
    return named_after(all_, split, {"**/{0}/**", "**/{0}[{1}]*/**", "**/*[{1}]{0}/**", "**/*[{1}]{0}[{1}]*/**"});
  }
  Paths files_named(const std::string& split) const {
    return named_after(all_, split, {"**/{0}[{1}]*", "**/*[{1}]{0}[{1}]*"});
  }

  const Paths& all_;
  bool is_numbered_ = false, has_folders_ = false, has_names_ = false;
};

void check_files(const SplitFiles& split) {
  std::set<std::string> kinds;
  for (const auto& file : split.files) {
    if (is_archived(file))
      throw DataError(fmt::format("{}: this file of the split '{}' is a zip archive, which is not read: unpack it and "
                                  "take the archive away (.gz, .bz2, .xz, .zst and .lz4 are read)",
                                  file, split.name),
                      file);
    const std::string ending = data_ending(file);
    kinds.insert(ending == ".json" || ending == ".ndjson" ? ".jsonl" : ending);
  }
  if (kinds.size() > 1)
    throw DataError(fmt::format("split '{}' mixes files of several kinds ({}): {}; keep one kind", split.name,
                                fmt::join(kinds, ", "), fmt::join(split.files, ", ")),
                    split.files.front());
}

/// Fills in the files of all splits; false where the first has none.
bool choose(const Paths& all, std::vector<SplitFiles>& splits) {
  const SplitFinder finder(all);
  for (auto& split : splits) split.files = finder.files_of(split.name);
  if (splits.front().files.empty() && !finder.has_names()) splits.front().files = matching(all, {"**"});
  std::for_each(splits.begin(), splits.end(), check_files);
  return !splits.front().files.empty();
}

[[noreturn]] void fail_empty(const std::string& name, const std::string& split, const std::string& found) {
  throw DataError(fmt::format("{}: no file for the split '{}' ({}.jsonl, {}-00000-of-00002.json ...); {}", name, split,
                              split, split, found),
                  name);
}

std::string found_in(const Paths& all) {
  return all.empty() ? "there is no data file (.jsonl, .json, .csv, .tsv, .txt, .parquet, .arrow) in this folder"
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
    split.files = matching(all, found ? found->patterns : Paths());
    std::erase_if(split.files, [](const std::string& file) { return !is_data_file(file) && !is_archived(file); });
    check_files(split);
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

/// Every file below the folder; a link to a folder is followed unless it leads to one that holds it.
Paths list_all(const fs::path& folder) {
  Paths out;
  const auto add = [&](const auto& self, const fs::path& here, std::set<fs::path> around) -> void {
    if (!around.insert(fs::canonical(folder / here)).second) return;
    for (const auto& entry : fs::directory_iterator(folder / here)) {
      const fs::path path = here / entry.path().filename();
      if (entry.is_directory())
        self(self, path, around);
      else
        out.push_back(path.string());
    }
  };
  add(add, "", {});
  std::sort(out.begin(), out.end());
  return out;
}

/// Of all files those of the configuration, as paths below its folder.
struct ConfigFiles {
  std::string folder;  // below the data set's; with a slash at its end, or empty
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

void choose_by_patterns(const DatasetName& dataset, const Paths& all, std::vector<SplitFiles>& splits) {
  const std::string folder = dataset.config.empty() ? "" : without_end_slashes(dataset.config) + "/";
  Paths patterns;
  for (const auto& file : dataset.files) patterns.push_back(folder + file);
  splits.front().files = matching(all, patterns);
  if (splits.front().files.empty())
    throw DataError(fmt::format("{}: no file is named {}; {}", dataset.name, fmt::join(patterns, ", "), found_in(all)),
                    dataset.name);
  check_files(splits.front());
}

/// By the patterns that are given, the card, else by names. Returns the configuration's folder, below which the files
/// are named; `found` says what is there instead of the first split.
std::string choose_files(const std::vector<CardConfig>& card, const DatasetName& dataset, const Paths& all,
                         std::vector<SplitFiles>& splits, const std::function<std::string(const Paths&)>& found) {
  if (!dataset.files.empty()) {
    choose_by_patterns(dataset, all, splits);
    return "";
  }
  const CardConfig* config = described(card, dataset, all);
  if (config && !config->splits.empty()) {
    choose_by_card(*config, dataset, all, splits);
    return "";
  }
  const auto [folder, files] = files_of_config(all, config ? without_end_slashes(config->folder) : dataset.config);
  if (choose(files, splits)) return folder;
  if (files.empty() && !dataset.config.empty() && !config) {
    Paths rows;
    std::copy_if(all.begin(), all.end(), std::back_inserter(rows), holds_rows);
    throw DataError(fmt::format("{}: no folder '{}' with data files, which --dataset_config_name names; {}",
                                dataset.name, dataset.config, found(rows)),
                    dataset.name);
  }
  fail_empty(dataset.name, splits.front().name, found(files));
}

void choose_here(const DatasetName& dataset, std::vector<SplitFiles>& splits) {
  const fs::path root = dataset.name;
  if (dataset.files.empty() && choose_saved(root / dataset.config, splits, words_for)) return;
  const std::string folder =
      choose_files(read_dataset_card((root / kCard).string()), dataset, list_all(root), splits, found_in);
  for (auto& split : splits)
    for (auto& file : split.files) file = (root / (folder + file)).string();
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
  return "it has no data file that is read here (.jsonl, .json, .csv, .tsv, .txt, .parquet, .arrow)";
}

void choose_on_hub(const DatasetName& dataset, std::vector<SplitFiles>& splits) {
  std::string below;
  const auto select = [&](const Paths& all, const std::string& root) {
    const std::string card_file = root + "/" + kCard;
    if (!is_there(card_file) && std::binary_search(all.begin(), all.end(), kCard)) return Paths{kCard};
    below = choose_files(read_dataset_card(card_file), dataset, all, splits,
                         [&](const Paths&) { return found_on_hub(dataset.name, all); });
    Paths out;
    for (const auto& split : splits)
      for (const auto& file : split.files) out.push_back(below + file);
    return out;
  };
  const fs::path root = hub::fetch(hub::name_of_missing(hub::Kind::kDataset, dataset.name), {.select = select},
                                   hub::settings_from_environment());
  for (auto& split : splits)
    for (auto& file : split.files) file = (root / (below + file)).string();
}

}  // namespace

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
    check_files(out.front());
  }
  return out;
}

std::vector<std::string> find_files(const std::string& pattern) {
  if (is_there(pattern) && !fs::is_directory(pattern)) return {pattern};
  const std::size_t slash = pattern.substr(0, pattern.find_first_of("*?[")).rfind('/');
  const std::string root = slash == std::string::npos ? "" : pattern.substr(0, slash + 1);
  const fs::path folder = root.empty() ? "." : root;
  if (!fs::is_directory(folder)) return {};
  Paths files = matching(list_all(folder), {pattern.substr(root.size())});
  for (auto& file : files) file.insert(0, root);
  return files;
}

}  // namespace tessera::data
