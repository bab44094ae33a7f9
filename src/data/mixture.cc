#include "data/mixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/open_file.h"
#include "data/fingerprint.h"
#include "data/shuffle.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kFormats{"json", "csv", "parquet", "text", "arrow"};

[[noreturn]] void refuse(std::size_t entry, const std::string& what) {
  throw ConfigError(fmt::format("--datasets: entry {}: {}", entry + 1, what), "datasets");
}

std::string text_of(std::size_t entry, const std::string& key, const json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) refuse(entry, fmt::format("{} expects a text, found {}", key, json_text(value)));
  return value.get<std::string>();
}

std::vector<std::string> texts_of(std::size_t entry, const std::string& key, const json& value) {
  std::vector<std::string> out;
  if (value.is_null()) return out;
  if (!value.is_array()) return {text_of(entry, key, value)};
  for (const auto& item : value) out.push_back(text_of(entry, key, item));
  return out;
}

MixturePart parse_part(std::size_t entry, const json& object) {
  if (!object.is_object())
    refuse(entry, fmt::format("expected keys such as path and split, found {}", json_text(object)));
  MixturePart part;
  if (const auto split = object.find("split"); split != object.end() && !split->is_null())
    part.split = text_of(entry, "split", *split);
  for (const auto& [key, value] : object.items()) {
    if (key == "path")
      part.path = text_of(entry, key, value);
    else if (key == "name")
      part.name = text_of(entry, key, value);
    else if (key == "data_dir")
      part.data_dir = text_of(entry, key, value);
    else if (key == "columns")
      part.columns = texts_of(entry, key, value);
    else if (key == "data_files" && value.is_object() && !value.contains(part.split))
      refuse(entry, fmt::format("data_files names no files of the split '{}'", part.split));
    else if (key == "data_files")
      part.data_files = texts_of(entry, key, value.is_object() ? value[part.split] : value);
    else if (key == "fraction" && value.is_number())
      part.fraction = value.get<double>();
    else if (key == "fraction" && !value.is_null())
      refuse(entry, fmt::format("fraction expects a number, found {}", json_text(value)));
    else if (key != "split" && key != "fraction")
      refuse(entry, fmt::format(
                        "unknown key '{}'; there are path, name, data_dir, data_files, split, columns, fraction", key));
  }
  if (part.path.empty()) refuse(entry, "path is missing: a file, a folder, or a name on the Hub");
  if (!part.name.empty() && !part.data_dir.empty())
    refuse(entry, "name and data_dir both choose a part of the data set; keep one");
  if (part.fraction && !(*part.fraction >= 0 && std::isfinite(*part.fraction)))
    refuse(entry, fmt::format("fraction must not be negative, found {}", *part.fraction));
  return part;
}

/// Files that are named one by one, or by patterns.
std::vector<std::string> files_by_pattern(const MixturePart& part) {
  std::vector<std::string> out;
  for (const auto& file : part.data_files) {
    const std::string pattern = part.data_dir.empty() || file.starts_with('/') ? file : part.data_dir + "/" + file;
    const auto found = find_files(pattern);
    if (found.empty()) throw DataError(fmt::format("{}: no such file (data_files of --datasets)", pattern), pattern);
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

std::vector<std::string> files_of(std::size_t entry, const MixturePart& part) {
  if (std::find(kFormats.begin(), kFormats.end(), part.path) == kFormats.end() || is_there(part.path)) {
    const std::string config = part.name.empty() ? part.data_dir : part.name;
    return find_split_files({part.path, config, part.data_files}, part.split).front().files;
  }
  if (part.data_files.empty()) refuse(entry, fmt::format("path '{}' needs data_files", part.path));
  return files_by_pattern(part);
}

std::int64_t rows_in(const std::string& file) {
  const auto source = open_rows(file, "text");
  std::int64_t rows = 0;
  for (SourceRow row; source->next(row);) ++rows;
  return rows;
}

/// All rows of a mixture, part by part and file by file.
struct Rows {
  Split split;
  std::vector<std::size_t> part_of_file;
  std::vector<std::int64_t> size;  // of each file
};

/// How many rows of each part count.
std::vector<std::int64_t> rows_by_fraction(const std::vector<MixturePart>& parts, const Rows& all) {
  std::vector<std::int64_t> held(parts.size());
  for (std::size_t i = 0; i < all.size.size(); ++i) held[all.part_of_file[i]] += all.size[i];
  const auto has_fraction = [](const MixturePart& part) { return part.fraction.has_value(); };
  if (std::none_of(parts.begin(), parts.end(), has_fraction)) return held;
  if (!std::all_of(parts.begin(), parts.end(), has_fraction))
    throw ConfigError("--datasets: some entries have a fraction and others none; give it to all or to none",
                      "datasets");
  double sum_of_fractions = 0, total = std::numeric_limits<double>::infinity();
  for (const auto& part : parts) sum_of_fractions += *part.fraction;
  if (!(sum_of_fractions > 0)) throw ConfigError("--datasets: every fraction is 0", "datasets");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double weight = *parts[i].fraction / sum_of_fractions;
    if (weight > 0) total = std::min(total, static_cast<double>(held[i]) / weight);
  }
  for (std::size_t i = 0; i < parts.size(); ++i)
    held[i] = std::llrint(*parts[i].fraction / sum_of_fractions * total);  // half to even, as Python rounds
  return held;
}

/// One bit for each row, file by file.
using Taken = std::vector<std::vector<bool>>;

Taken first_rows(const Rows& all, std::vector<std::int64_t> left) {
  Taken taken;
  for (std::size_t i = 0; i < all.size.size(); ++i) {
    auto& of_part = left[all.part_of_file[i]];
    const auto count = std::min(of_part, all.size[i]);
    of_part -= count;
    taken.emplace_back(static_cast<std::size_t>(all.size[i]), false);
    std::fill_n(taken.back().begin(), count, true);
  }
  return taken;
}

/// Moves the rows that are held out from `taken` to the result.
Taken hold_out(Taken& taken, double size, std::int64_t seed) {
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (std::size_t i = 0; i < taken.size(); ++i)
    for (std::size_t j = 0; j < taken[i].size(); ++j)
      if (taken[i][j]) places.emplace_back(i, j);
  const auto total = static_cast<double>(places.size());
  const double count = size < 1 ? std::ceil(size * total) : size;
  if (!(size > 0) || count != std::floor(count) || count >= total)
    throw ConfigError(fmt::format("--test_split_size {} of {} rows: expected a share between 0 and 1, or a number of "
                                  "rows that leaves some to train on",
                                  size, places.size()),
                      "test_split_size");
  const auto order = shuffled(static_cast<std::int64_t>(places.size()), static_cast<std::uint64_t>(seed), 0);
  Taken out;
  for (const auto& file : taken) out.emplace_back(file.size(), false);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto [file, row] = places[static_cast<std::size_t>(order[i])];
    taken[file][row] = false;
    out[file][row] = true;
  }
  return out;
}

Split with_rows(const Rows& all, const char* name, Taken rows) {
  Split split = all.split;
  split.name = name;
  auto selection = std::make_shared<RowSelection>(*all.split.selection);
  selection->rows = std::move(rows);
  split.selection = std::move(selection);
  return split;
}

std::vector<Split> splits_of(const Mixture& mixture) {
  Rows all;
  auto columns = std::make_shared<RowSelection>();
  bool has_fractions = false;
  for (std::size_t i = 0; i < mixture.parts.size(); ++i) {
    const auto& part = mixture.parts[i];
    has_fractions = has_fractions || part.fraction.has_value();
    for (auto& file : files_of(i, part)) {
      all.split.files.push_back(std::move(file));
      all.part_of_file.push_back(i);
      columns->columns.push_back(part.columns);
    }
  }
  all.split.name = "train";
  all.split.selection = columns;
  if (!has_fractions && !mixture.test_split_size) return {all.split};
  for (const auto& file : all.split.files) all.size.push_back(rows_in(file));
  auto train = first_rows(all, rows_by_fraction(mixture.parts, all));
  if (!mixture.test_split_size) return {with_rows(all, "train", std::move(train))};
  auto test = hold_out(train, *mixture.test_split_size, mixture.seed);
  return {with_rows(all, "train", std::move(train)), with_rows(all, "test", std::move(test))};
}

/// Rows and columns that are chosen of another source.
class SelectedRows : public RowSource {
 public:
  SelectedRows(std::unique_ptr<RowSource> all, std::shared_ptr<const RowSelection> selection, std::size_t file)
      : all_(std::move(all)), selection_(std::move(selection)), file_(file) {}

  bool next(SourceRow& row) override {
    const auto& columns = selection_->columns[file_];
    while (all_->next(row)) {
      const auto number = next_++;
      if (!selection_->rows.empty()) {
        const auto& taken = selection_->rows[file_];
        if (number >= taken.size() || !taken[number]) continue;
      }
      row.kept = columns.empty() ? nullptr : &columns;
      return true;
    }
    return false;
  }

 private:
  std::unique_ptr<RowSource> all_;
  std::shared_ptr<const RowSelection> selection_;
  std::size_t file_, next_ = 0;
};

}  // namespace

std::vector<MixturePart> parse_mixture(const std::string& text) {
  const auto list = json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty())
    throw ConfigError(
        fmt::format("--datasets expects a list such as [{{\"path\": \"org/name\", \"split\": \"train\"}}], found '{}'",
                    text),
        "datasets");
  std::vector<MixturePart> parts;
  for (std::size_t i = 0; i < list.size(); ++i) parts.push_back(parse_part(i, list[i]));
  return parts;
}

std::vector<Split> find_splits(const DatasetOptions& options) {
  if (!options.mixture.parts.empty()) return splits_of(options.mixture);
  std::vector<Split> out;
  for (auto& files : find_split_files({options.dataset_name, options.dataset_config}, options.splits))
    out.push_back({std::move(files)});
  if (out.size() > 2)
    throw ConfigError(
        fmt::format("--splits names {} splits; expected one to train on and one to evaluate on", out.size()), "splits");
  return out;
}

std::unique_ptr<RowSource> open_rows(const Split& split, std::size_t file, const std::string& text_column) {
  auto all = open_rows(split.files[file], text_column);
  if (!split.selection) return all;
  return std::make_unique<SelectedRows>(std::move(all), split.selection, file);
}

void add_split(Fingerprint& key, const Split& split) {
  for (const auto& file : split.files) key.add_file(file);
  if (!split.selection) return;
  for (const auto& columns : split.selection->columns) key.add(fmt::format("columns {}", fmt::join(columns, "\n")));
  for (const auto& rows : split.selection->rows) {
    std::string bits;
    for (const bool taken : rows) bits += taken ? '1' : '0';
    key.add(bits);
  }
}

}  // namespace tessera::data
