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
#include "data/unpack.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

using Files = std::vector<std::string>;

constexpr std::array<std::string_view, 5> kValidation{"val", "valid", "validation", "dev", "eval"};
constexpr std::array<const char*, 4> kPhraseBank{"Sentences_AllAgree.txt", "Sentences_75Agree.txt",
                                                 "Sentences_66Agree.txt", "Sentences_50Agree.txt"};

/// The validation file that belongs to a training file: the same name but for its last word.
Files partner(const fs::path& train) {
  const std::string stem = fs::path(without_packing(train.string())).stem().string();
  const std::string endings = train.filename().string().substr(stem.size());
  constexpr std::string_view kTrain = "train";
  const auto before = stem.size() - std::min(stem.size(), kTrain.size());
  const bool is_named = stem.ends_with(kTrain) && (before == 0 || stem[before - 1] == '_' || stem[before - 1] == '-');
  for (auto name : kValidation) {
    auto path = train.parent_path() / (stem.substr(0, before) + std::string(name) + endings);
    if (is_named && is_there(path)) return {path.string()};
  }
  return {};
}

/// Of the splits behind the first.
Files first_there(const std::vector<SplitFiles>& splits) {
  const auto found =
      std::find_if(splits.begin() + 1, splits.end(), [](const SplitFiles& split) { return !split.files.empty(); });
  return found == splits.end() ? Files() : found->files;
}

struct Found {
  Files train, validation;  // validation may be empty
};

Found find_files(const DatasetName& dataset, const std::string& validation) {
  const auto splits = find_split_files(dataset, "train," + validation);
  Found out{splits[0].files, first_there(splits)};
  if (out.train == Files{dataset.name}) out.validation = partner(dataset.name);
  for (const char* name : kPhraseBank) {
    const auto bank =
        std::find_if(out.train.begin(), out.train.end(), [&](const fs::path& file) { return file.filename() == name; });
    if (bank != out.train.end()) return {{*bank}, out.validation};
  }
  return out;
}

std::vector<TextPair> rows_of(const Files& files, const ReadOptions& options) {
  std::vector<TextPair> rows;
  for (const auto& file : files) {
    auto more = read_pairs(file, options);
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return rows;
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

void keep_first(std::vector<TextPair>& rows, std::int64_t count) {
  if (count > 0 && count < std::ssize(rows)) rows.resize(static_cast<std::size_t>(count));
}

std::vector<TextPair> read_split(const DatasetName& dataset, const std::string& split, const ReadOptions& read) {
  const auto found = find_split_files(dataset, split == "train" ? split : "train," + split);
  const auto files = split == "train" ? found.front().files : first_there(found);
  if (files.empty())
    throw DataError(fmt::format("{}: no file for the split '{}'; the split 'train' is {}", dataset.name, split,
                                fmt::join(found.front().files, ", ")),
                    dataset.name);
  return rows_of(files, read);
}

PairSplits read_splits(const DatasetName& dataset, const ReadOptions& read, const SplitOptions& options) {
  auto found = find_files(dataset, options.validation_splits);
  if (!options.validation_file.empty())
    found.validation = find_split_files({.name = options.validation_file, .config = {}}, "validation").front().files;
  auto rows = rows_of(found.train, read);
  const auto columns = columns_note(found.train.front(), read);
  const auto total = rows.size();
  const auto train = fmt::format("{}", fmt::join(found.train, ", "));
  if (!found.validation.empty()) {
    PairSplits out{std::move(rows), rows_of(found.validation, read), {}};
    out.notes = {
        fmt::format("training data: {} ({} rows)", train, total),
        fmt::format("validation data: {} ({} rows)", fmt::join(found.validation, ", "), out.validation.size())};
    if (!columns.empty()) out.notes.push_back(columns);
    return out;
  }
  auto out = split(std::move(rows), options);
  out.notes = {fmt::format("data: {} ({} rows, of which {} held out for validation with seed {})", train, total,
                           out.validation.size(), options.seed)};
  if (!columns.empty()) out.notes.push_back(columns);
  return out;
}

}  // namespace tessera::data
