#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "data/row_table.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using Names = std::array<std::string_view, 5>;
constexpr Names kTextNames{"sentence", "text", "source", "input", "document"};
constexpr auto kFirstOfPair = "sentence1", kSecondOfPair = "sentence2";
constexpr Names kLabelNames{"text_label", "label", "target", "output", "summary"};

std::string choose(const std::string& file, std::int64_t line, const std::vector<std::string>& columns,
                   const std::string& wanted, const Names& usual, const char* flag) {
  const auto has = [&](std::string_view name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  if (!wanted.empty() && has(wanted)) return wanted;
  if (wanted.empty())
    for (auto name : usual)
      if (has(name)) return std::string(name);
  const auto looked = wanted.empty() ? fmt::format("none of the usual columns {}", fmt::join(usual, ", "))
                                     : fmt::format("no column '{}'", wanted);
  throw DataError(fmt::format("{}:{}: {}; the columns are {}. Choose one with --{}", file, line, looked,
                              columns.empty() ? "(none)" : fmt::format("{}", fmt::join(columns, ", ")), flag),
                  file, line);
}

}  // namespace

ColumnNames choose_columns(const std::string& file, std::int64_t line, const std::vector<std::string>& columns,
                           const ReadOptions& options) {
  const bool are_languages = !options.inside.empty();
  ColumnNames out{.text = options.text_column, .label = {}, .second = options.pair_column};
  const auto has = [&](const char* name) { return std::find(columns.begin(), columns.end(), name) != columns.end(); };
  if (options.takes_pairs && out.text.empty() && has(kFirstOfPair) && has(kSecondOfPair)) {
    out.text = kFirstOfPair;
    out.second = kSecondOfPair;
  }
  out.text = choose(file, line, columns, out.text, kTextNames, are_languages ? "source_lang" : "text_column");
  for (const auto& name : options.more_text_columns) choose(file, line, columns, name, {}, "text_column");
  if (!options.without_labels)
    out.label =
        choose(file, line, columns, options.label_column, kLabelNames, are_languages ? "target_lang" : "label_column");
  if (!out.second.empty()) out.second = choose(file, line, columns, out.second, {}, "text_pair_column");
  return out;
}

std::string label_text(const std::string& file, std::int64_t line, const std::string& label, bool is_integer,
                       const ReadOptions& options) {
  if (!is_integer || options.label_names.empty()) return label;
  std::int64_t index = -1;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), index);
  if (error != std::errc() || end != label.data() + label.size() || index < 0 ||
      index >= static_cast<std::int64_t>(options.label_names.size()))
    throw DataError(fmt::format("{}:{}: label {} is not an index into the {} label names ({})", file, line, label,
                                options.label_names.size(), fmt::join(options.label_names, ", ")),
                    file, line);
  return options.label_names[static_cast<std::size_t>(index)];
}

}  // namespace tessera::data
