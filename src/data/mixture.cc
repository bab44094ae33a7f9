#include "data/mixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/json_text.h"
#include "base/open_file.h"
#include "data/fingerprint.h"
#include "data/numpy_permutation.h"
#include "data/shuffle.h"
#include "data/split_slice.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 5> kFormats{"json", "csv", "parquet", "text", "arrow"};

/// Which entry of which flag, for messages.
struct FlagEntry {
  std::string flag;
  std::size_t number = 0;
};

[[noreturn]] void refuse(const FlagEntry& entry, const std::string& what) {
  throw ConfigError(fmt::format("{}: entry {}: {}", entry.flag, entry.number + 1, what), entry.flag.substr(2));
}

std::string text_of(const FlagEntry& entry, const std::string& key, const json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) refuse(entry, fmt::format("{} expects a text, found {}", key, json_text(value)));
  return value.get<std::string>();
}

std::vector<std::string> texts_of(const FlagEntry& entry, const std::string& key, const json& value) {
  std::vector<std::string> out;
  if (value.is_null()) return out;
  if (!value.is_array()) return {text_of(entry, key, value)};
  for (const auto& item : value) out.push_back(text_of(entry, key, item));
  return out;
}

SplitSlice split_of(const FlagEntry& entry, const MixturePart& part) {
  return parse_split_slice(part.split, entry.flag);
}

MixturePart parse_part(const FlagEntry& entry, const json& object) {
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
    else if (key == "data_files" && value.is_object() && !value.contains(split_of(entry, part).split))
      refuse(entry, fmt::format("data_files names no files of the split '{}'", split_of(entry, part).split));
    else if (key == "data_files")
      part.data_files = texts_of(entry, key, value.is_object() ? value[split_of(entry, part).split] : value);
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

MixturePart parse_handbook_part(const FlagEntry& entry, const json& object) {
  if (!object.is_object())
    refuse(entry, fmt::format("expected keys such as id and split, found {}", json_text(object)));
  MixturePart part;
  for (const auto& [key, value] : object.items()) {
    if (key == "id")
      part.path = text_of(entry, key, value);
    else if (key == "config")
      part.name = text_of(entry, key, value);
    else if (key == "split" && !value.is_null())
      part.split = text_of(entry, key, value);
    else if (key == "columns")
      part.columns = texts_of(entry, key, value);
    else if (key == "weight" && value.is_number())
      part.weight = value.get<double>();
    else if (key == "weight" && !value.is_null())
      refuse(entry, fmt::format("weight expects a number, found {}", json_text(value)));
    else if (key != "split" && key != "weight")
      refuse(entry, fmt::format("unknown key '{}'; there are id, config, split, columns, weight", key));
  }
  if (part.path.empty()) refuse(entry, "id is missing: a file, a folder, or a name on the Hub");
  if (part.weight && !(*part.weight >= 0 && *part.weight <= 1))
    refuse(entry, fmt::format("weight is a share of the rows, from 0 to 1, found {}", *part.weight));
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

std::vector<std::string> files_of(const FlagEntry& entry, const MixturePart& part) {
  if (std::find(kFormats.begin(), kFormats.end(), part.path) == kFormats.end() || is_there(part.path)) {
    const std::string config = part.name.empty() ? part.data_dir : part.name;
    return find_split_files({part.path, config, part.data_files}, split_of(entry, part).split).front().files;
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
  std::vector<RowRange> range;  // of each file: those of its part's slice

  std::int64_t size(std::size_t file) const { return range[file].end - range[file].begin; }
};

/// Which rows of each file are in a slice of all.
std::vector<RowRange> ranges_in(const SplitSlice& slice, const std::vector<std::int64_t>& rows_of_files) {
  const auto sliced = rows_of(slice, std::accumulate(rows_of_files.begin(), rows_of_files.end(), std::int64_t{0}));
  std::vector<RowRange> out;
  std::int64_t before = 0;
  for (const auto rows : rows_of_files) {
    const auto in_file = [&](std::int64_t row) { return std::clamp<std::int64_t>(row - before, 0, rows); };
    out.push_back({in_file(sliced.begin), in_file(sliced.end)});
    before += rows;
  }
  return out;
}

std::vector<std::int64_t> rows_of_all(const std::vector<std::string>& files) {
  std::vector<std::int64_t> rows;
  for (const auto& file : files) rows.push_back(rows_in(file));
  return rows;
}

/// How many rows of each part count.
std::vector<std::int64_t> rows_by_fraction(const std::vector<MixturePart>& parts, const Rows& all) {
  std::vector<std::int64_t> held(parts.size());
  for (std::size_t i = 0; i < all.range.size(); ++i) held[all.part_of_file[i]] += all.size(i);
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
  for (std::size_t i = 0; i < all.range.size(); ++i) {
    auto& of_part = left[all.part_of_file[i]];
    const auto count = std::min(of_part, all.size(i));
    of_part -= count;
    taken.emplace_back(static_cast<std::size_t>(all.range[i].end), false);
    std::fill_n(taken.back().begin() + all.range[i].begin, count, true);
  }
  return taken;
}

/// File and row.
using Place = std::pair<std::size_t, std::size_t>;

std::vector<Place> places_in(const Taken& taken) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < taken.size(); ++i)
    for (std::size_t j = 0; j < taken[i].size(); ++j)
      if (taken[i][j]) places.emplace_back(i, j);
  return places;
}

/// Whether each row is among these.
Taken only(const std::vector<Place>& places, const Rows& all) {
  Taken taken;
  for (const auto& range : all.range) taken.emplace_back(static_cast<std::size_t>(range.end), false);
  for (const auto& [file, row] : places) taken[file][row] = true;
  return taken;
}

/// How many of so many rows are held out.
std::size_t held_out(double size, std::size_t rows) {
  const auto total = static_cast<double>(rows);
  const double count = size < 1 ? std::ceil(size * total) : size;
  if (!(size > 0) || count != std::floor(count) || count >= total)
    throw ConfigError(fmt::format("test_split_size {} of {} rows: expected a share between 0 and 1, or a number of "
                                  "rows that leaves some to train on",
                                  size, rows),
                      "test_split_size");
  return static_cast<std::size_t>(count);
}

std::vector<Place> in_order(const std::vector<Place>& places, const std::vector<std::int64_t>& order) {
  std::vector<Place> out;
  for (const auto i : order) out.push_back(places[static_cast<std::size_t>(i)]);
  return out;
}

/// The rows that the handbook trains on and evaluates on: of each part with a weight so many, drawn by the seed; those
/// of all shuffled by it; of these so many held out that it draws again.
std::pair<Taken, Taken> draw_as_handbook(const Mixture& mixture, const Rows& all) {
  const auto seed = static_cast<std::uint64_t>(mixture.seed);
  const auto shuffle = [&](const std::vector<Place>& places) {
    return in_order(places, numpy_permutation(std::ssize(places), seed));
  };
  std::vector<Place> drawn;
  for (std::size_t part = 0, file = 0; part < mixture.parts.size(); ++part) {
    std::vector<Place> of_part;
    for (; file < all.range.size() && all.part_of_file[file] == part; ++file)
      for (auto row = all.range[file].begin; row < all.range[file].end; ++row) of_part.emplace_back(file, row);
    if (const auto weight = mixture.parts[part].weight) {
      of_part = shuffle(of_part);
      of_part.resize(static_cast<std::size_t>(static_cast<double>(of_part.size()) * *weight));
    }
    drawn.insert(drawn.end(), of_part.begin(), of_part.end());
  }
  if (!mixture.test_split_size) return {only(drawn, all), {}};
  drawn = shuffle(shuffle(drawn));
  const auto first_of_train =
      drawn.begin() + static_cast<std::ptrdiff_t>(held_out(*mixture.test_split_size, drawn.size()));
  return {only({first_of_train, drawn.end()}, all), only({drawn.begin(), first_of_train}, all)};
}

/// The first rows of each part, and of these so many held out that the seed draws.
std::pair<Taken, Taken> draw(const Mixture& mixture, const Rows& all) {
  if (mixture.as_numpy_draws) return draw_as_handbook(mixture, all);
  auto train = first_rows(all, rows_by_fraction(mixture.parts, all));
  if (!mixture.test_split_size) return {std::move(train), {}};
  const auto places = places_in(train);
  auto held = in_order(places, shuffled(std::ssize(places), static_cast<std::uint64_t>(mixture.seed), 0));
  held.resize(held_out(*mixture.test_split_size, places.size()));
  for (const auto& [file, row] : held) train[file][row] = false;
  return {std::move(train), only(held, all)};
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
  bool are_all = !mixture.test_split_size;
  for (std::size_t i = 0; i < mixture.parts.size(); ++i) {
    const auto& part = mixture.parts[i];
    are_all = are_all && !part.fraction && !part.weight && split_of({mixture.flag, i}, part).has_all_rows();
    for (auto& file : files_of({mixture.flag, i}, part)) {
      all.split.files.push_back(std::move(file));
      all.part_of_file.push_back(i);
      columns->columns.push_back(part.columns);
    }
  }
  all.split.name = "train";
  all.split.selection = columns;
  if (are_all) return {all.split};
  const auto rows = rows_of_all(all.split.files);
  for (std::size_t i = 0, file = 0; i < mixture.parts.size(); ++i) {
    std::vector<std::int64_t> of_part;
    for (; file < rows.size() && all.part_of_file[file] == i; ++file) of_part.push_back(rows[file]);
    const auto ranges = ranges_in(split_of({mixture.flag, i}, mixture.parts[i]), of_part);
    all.range.insert(all.range.end(), ranges.begin(), ranges.end());
  }
  auto [train, test] = draw(mixture, all);
  if (!mixture.test_split_size) return {with_rows(all, "train", std::move(train))};
  return {with_rows(all, "train", std::move(train)), with_rows(all, "test", std::move(test))};
}

/// The splits of one data set; of those with a slice the rows in it.
std::vector<Split> splits_of(const DatasetName& dataset, const std::string& names) {
  std::vector<SplitSlice> slices;
  std::vector<std::string> distinct;
  for (const auto& name : split_names(names)) {
    slices.push_back(parse_split_slice(name, "--splits"));
    if (std::find(distinct.begin(), distinct.end(), slices.back().split) == distinct.end())
      distinct.push_back(slices.back().split);
  }
  const auto found = find_split_files(dataset, fmt::format("{}", fmt::join(distinct, ",")));
  std::vector<Split> out;
  for (const auto& slice : slices) {
    const auto place = std::find(distinct.begin(), distinct.end(), slice.split) - distinct.begin();
    out.push_back({found[static_cast<std::size_t>(place)]});
    if (slice.has_all_rows()) continue;
    out.back().name = slice.text;
    Rows all{out.back(), std::vector<std::size_t>(out.back().files.size()), {}};
    all.range = ranges_in(slice, rows_of_all(all.split.files));
    auto selection = std::make_shared<RowSelection>();
    selection->columns.resize(all.split.files.size());
    selection->rows = first_rows(all, {std::numeric_limits<std::int64_t>::max()});
    out.back().selection = std::move(selection);
  }
  return out;
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
  for (std::size_t i = 0; i < list.size(); ++i) parts.push_back(parse_part({"--datasets", i}, list[i]));
  return parts;
}

Mixture parse_handbook_mixture(const std::string& text) {
  const auto fail = [](const std::string& what) { throw ConfigError("--dataset_mixture " + what, "dataset_mixture"); };
  const auto object = json::parse(text, nullptr, false);
  const auto list = object.is_object() ? object.value("datasets", json()) : json();
  if (!list.is_array() || list.empty())
    fail("expects keys as in {\"datasets\": [{\"id\": \"org/name\", \"weight\": 0.5}], \"seed\": 0}, found '" + text +
         "'");
  Mixture out;
  out.flag = "--dataset_mixture";
  out.as_numpy_draws = true;
  out.seed = 0;
  for (std::size_t i = 0; i < list.size(); ++i) out.parts.push_back(parse_handbook_part({out.flag, i}, list[i]));
  for (const auto& [key, value] : object.items()) {
    if (key == "datasets" || value.is_null()) continue;
    if (key == "seed" && value.is_number_integer() && value >= 0)
      out.seed = value.get<std::int64_t>();
    else if (key == "test_split_size" && value.is_number())
      out.test_split_size = value.get<double>();
    else if (key == "seed" || key == "test_split_size")
      fail(fmt::format("expects a number as {}, found {}", key, json_text(value)));
    else
      fail(fmt::format("has no key '{}'; there are datasets, seed, test_split_size", key));
  }
  return out;
}

std::vector<Split> find_splits(const DatasetOptions& options) {
  if (!options.mixture.parts.empty()) return splits_of(options.mixture);
  auto out = splits_of({options.dataset_name, options.dataset_config}, options.splits);
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
