#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "base/open_file.h"
#include "data/shuffle.h"
#include "data/split_files.h"
#include "data/text_pair.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kKinds{".jsonl", ".json", ".csv", ".txt"};
constexpr std::array<std::string_view, 4> kValidation{"val", "valid", "validation", "eval"};
constexpr std::array<const char*, 4> kPhraseBank{"Sentences_AllAgree.txt", "Sentences_75Agree.txt",
                                                 "Sentences_66Agree.txt", "Sentences_50Agree.txt"};

// "x_train.jsonl" -> "train"; "train.csv" -> "train".
std::string split_name(const fs::path& file) {
  const auto stem = file.stem().string();
  const auto cut = stem.find_last_of("_-");
  return cut == std::string::npos ? stem : stem.substr(cut + 1);
}

bool is_validation(const fs::path& file) {
  return std::find(kValidation.begin(), kValidation.end(), split_name(file)) != kValidation.end();
}

std::vector<fs::path> table_files(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto& path = entry.path();
    auto name = path.filename().string();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool prose = name.rfind("license", 0) == 0 || name.rfind("readme", 0) == 0;
    if (!prose && !entry.is_directory() && std::find(kKinds.begin(), kKinds.end(), path.extension()) != kKinds.end())
      out.push_back(path);
  }
  std::sort(out.begin(), out.end());
  return out;
}

struct Found {
  fs::path train, validation;  // validation may be empty
};

// The validation file that belongs to `train`: the same name but for the last word.
fs::path partner(const fs::path& train) {
  if (split_name(train) != "train") return {};
  const auto stem = train.stem().string();
  for (auto name : kValidation) {
    auto path =
        train.parent_path() / (stem.substr(0, stem.size() - 5) + std::string(name) + train.extension().string());
    if (is_there(path)) return path;
  }
  return {};
}

Found find_in_folder(const fs::path& folder) {
  const auto files = table_files(folder);
  std::vector<fs::path> train, validation;
  for (const auto& file : files) {
    if (split_name(file) == "train") train.push_back(file);
    if (is_validation(file)) validation.push_back(file);
  }
  if (train.size() == 1 && validation.size() <= 1) return {train[0], validation.empty() ? fs::path() : validation[0]};
  for (const char* name : kPhraseBank)
    if (is_there(folder / name)) return {folder / name, {}};
  if (files.size() == 1) return {files[0], {}};
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.filename().string());
  throw DataError(
      names.empty()
          ? fmt::format(
                "{}: no data file in this folder; looked for {}, *_train and *_val files, and one file that ends in {}",
                folder.string(), fmt::join(kPhraseBank, ", "), fmt::join(kKinds, ", "))
          : fmt::format("{}: cannot choose among {}; name one file, or have one *_train and one *_val file",
                        folder.string(), fmt::join(names, ", ")),
      folder.string());
}

}  // namespace

PairSplits split(std::vector<TextPair> rows, const SplitOptions& options) {
  const auto fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1))
    throw ConfigError(fmt::format("the validation fraction must be in [0, 1), found {}", fraction),
                      "validation_fraction");
  const auto total = static_cast<std::int64_t>(rows.size());
  auto held_out = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(total)));
  if (fraction > 0 && total > 1) held_out = std::clamp<std::int64_t>(held_out, 1, total - 1);
  const auto order = shuffled(total, options.seed, 0);
  std::vector<bool> chosen(rows.size());
  for (std::int64_t i = 0; i < held_out; ++i)
    chosen[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  PairSplits out;
  for (std::size_t i = 0; i < rows.size(); ++i) (chosen[i] ? out.validation : out.train).push_back(std::move(rows[i]));
  return out;
}

PairSplits read_splits(const std::string& file_or_folder, const ReadOptions& read, const SplitOptions& options) {
  const fs::path path(find_pair_files(file_or_folder));
  const auto found = fs::is_directory(path) ? find_in_folder(path) : Found{path, partner(path)};
  auto rows = read_pairs(found.train.string(), read);
  const auto total = rows.size();
  if (!found.validation.empty()) {
    PairSplits out{std::move(rows), read_pairs(found.validation.string(), read), {}};
    out.notes = {fmt::format("training data: {} ({} rows)", found.train.string(), total),
                 fmt::format("validation data: {} ({} rows)", found.validation.string(), out.validation.size())};
    return out;
  }
  auto out = split(std::move(rows), options);
  out.notes = {fmt::format("data: {} ({} rows, of which {} held out for validation with seed {})", found.train.string(),
                           total, out.validation.size(), options.seed)};
  return out;
}

}  // namespace tessera::data
