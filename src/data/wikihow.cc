#include "data/wikihow.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/open_file.h"
#include "base/row_limit.h"
#include "base/utf8.h"
#include "chat/jinja/unicode.h"
#include "data/csv_reader.h"
#include "data/mapped_text.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using Titles = std::unordered_set<std::string>;

/// Python's str.strip().
std::string stripped(const std::string& text) {
  const auto ascii_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f'); };
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (text.empty() || (plain(text.front()) && plain(text.back()))) {
    const auto begin = std::find_if_not(text.begin(), text.end(), ascii_space);
    const auto end = std::find_if_not(text.rbegin(), std::make_reverse_iterator(begin), ascii_space).base();
    if ((begin == end || (plain(*begin) && plain(end[-1])))) return {begin, end};
  }
  const std::u32string points = chat::to_points(text);
  const auto begin = std::find_if_not(points.begin(), points.end(), chat::is_space);
  const auto end = std::find_if_not(points.rbegin(), std::make_reverse_iterator(begin), chat::is_space).base();
  return chat::to_utf8({begin, end});
}

void remove_all(std::string& text, std::string_view part) {
  std::size_t kept = text.find(part);
  if (kept == std::string::npos) return;
  std::string out;
  std::size_t from = 0;
  for (; kept != std::string::npos; kept = text.find(part, from)) {
    out.append(text, from, kept - from);
    from = kept + part.size();
  }
  text = out.append(text, from);
}

/// re.sub(r"[.]+[\n]+[,]", ".\n", text)
std::string without_comma_lines(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto dots = std::min(text.find('.', at), text.size());
    out.append(text, at, dots - at);
    const auto lines = std::min(text.find_first_not_of('.', dots), text.size());
    const auto end = std::min(text.find_first_not_of('\n', lines), text.size());
    if (dots < lines && lines < end && end < text.size() && text[end] == ',') {
      out += ".\n";
      at = end + 1;
    } else {
      out.append(text, dots, lines - dots);
      at = lines;
    }
  }
  return out;
}

std::string title_key(const std::string& title) {
  std::string key = stripped(title);
  std::erase(key, ' ');
  return key;
}

std::optional<Titles> read_titles(const fs::path& file) {
  if (!is_there(file)) return std::nullopt;
  const MappedText mapped(file.string());
  return mapped.read([&] {
    Titles titles;
    std::string_view rest = mapped.text();
    for (std::int64_t number = 1; !rest.empty(); ++number) {
      const auto end = std::min(rest.substr(0, kMaxRowBytes + 1).find_first_of("\r\n"), rest.size());
      if (end > kMaxRowBytes) fail_long_row(mapped.name(), number);
      titles.insert(stripped(std::string(rest.substr(0, end))));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    titles.erase("");
    return titles;
  });
}

fs::path find_csv(const WikiHowOptions& o) {
  const bool all = o.part == WikiHowPart::kAll;
  const char* name = all ? "wikihowAll.csv" : "wikihowSep.csv";
  if (is_there(o.data_dir) && !fs::is_directory(o.data_dir)) return o.data_dir;
  const fs::path file = fs::path(o.data_dir) / name;
  if (is_there(file)) return file;
  const char* other = all ? "wikihowSep.csv" : "wikihowAll.csv";
  if (is_there(fs::path(o.data_dir) / other)) {
    throw DataError(fmt::format("'{}' has no {}, but {}: choose that one with --dataset_part {}", o.data_dir, name,
                                other, all ? "sep" : "all"),
                    file.string());
  }
  throw DataError(
      fmt::format("expected {} in '{}', found no such file. Download it (the links are in WikiHow's README) and give "
                  "its folder with --data_dir.",
                  name, o.data_dir),
      file.string());
}

class Reader {
 public:
  explicit Reader(const WikiHowOptions& options)
      : o_(options),
        path_(find_csv(options)),
        text_(path_.string()),
        csv_(path_.string(), text_.text(), CsvDialect::kPython) {
    const std::string prefix = o_.part == WikiHowPart::kAll ? "all_" : "sep_";
    const auto list = [&](const char* split) { return read_titles(path_.parent_path() / (prefix + split + ".txt")); };
    train_ = list("train");
    validation_ = list("val");
    test_ = list("test");
    if (!train_ && (validation_ || test_)) {
      throw DataError(fmt::format("{0}train.txt is missing beside {0}val.txt or {0}test.txt: give all lists of titles, "
                                  "or none",
                                  prefix),
                      path_.string());
    }
  }

  WikiHow read() {
    return text_.read([this] { return read_rows(); });
  }

 private:
  WikiHow read_rows() {
    read_header();
    std::vector<std::string> fields;
    std::int64_t line = 0;
    while (csv_.next(fields, line)) {
      if (fields.size() != columns_.size()) {
        ++malformed_;
        if (first_malformed_ == 0) first_malformed_ = line;
        continue;
      }
      take(fields, line);
      if (is_full()) break;
    }
    if (out_.train.empty()) {
      throw DataError(fmt::format("{}: no row to train on{}", path_.string(),
                                  train_ ? "; do the lists of titles belong to this file?" : ""),
                      path_.string());
    }
    add_notes();
    return std::move(out_);
  }

  void read_header() {
    std::int64_t line = 0;
    csv_.next(columns_, line);
    const auto index = [&](const char* name) {
      const auto it = std::find(columns_.begin(), columns_.end(), name);
      if (it == columns_.end()) {
        throw DataError(fmt::format("{}:1: expected a column '{}', found {}", path_.string(), name,
                                    columns_.empty() ? "an empty file" : fmt::format("{}", fmt::join(columns_, ", "))),
                        path_.string(), 1);
      }
      return static_cast<std::size_t>(it - columns_.begin());
    };
    headline_ = index("headline");
    text_column_ = index("text");
    title_ = train_ ? index("title") : 0;
    out_.columns = static_cast<std::int64_t>(columns_.size());
  }

  /// Without lists of titles nothing more is wanted from the file. With them the sizes of the splits are.
  bool is_full() const {
    return !train_ && o_.train_rows > 0 && o_.validation_rows > 0 && out_.train_size == o_.train_rows &&
           out_.validation_size == o_.validation_rows;
  }

  void take(std::vector<std::string>& fields, std::int64_t line) {
    for (const auto column : {headline_, text_column_}) {
      if (simdjson::validate_utf8(fields[column])) continue;
      throw DataError(fmt::format("{}:{}: expected UTF-8, found other bytes in the column '{}' of this row",
                                  path_.string(), line, columns_[column]),
                      path_.string(), line);
    }
    std::string headline = stripped(fields[headline_]), text = stripped(fields[text_column_]);
    tidy_wikihow(headline, text);
    if (headline.empty() || text.empty()) {
      ++too_short_;
      return;
    }
    TextPair row{std::move(text), std::move(headline), path_.string(), line};
    const std::string title = train_ ? title_key(fields[title_]) : "";
    const bool trains = train_ ? train_->contains(title) : o_.train_rows == 0 || out_.train_size < o_.train_rows;
    const bool validates = validation_ ? validation_->contains(title) : !train_ && !trains;
    if (test_ && test_->contains(title)) ++out_.test_size;
    if (validates) keep(row, o_.validation_rows, out_.validation, out_.validation_size);
    if (trains) keep(row, o_.train_rows, out_.train, out_.train_size);
  }

  static void keep(const TextPair& row, std::int64_t limit, std::vector<TextPair>& rows, std::int64_t& size) {
    ++size;
    if (limit == 0 || static_cast<std::int64_t>(rows.size()) < limit) rows.push_back(row);
  }

  void add_notes() {
    if (!train_) {
      out_.notes.push_back(fmt::format(
          "{} has no lists of titles beside it ({}_train.txt, ...): the first {} rows train, "
          "the next {} validate",
          path_.string(), o_.part == WikiHowPart::kAll ? "all" : "sep", out_.train.size(), out_.validation.size()));
    }
    if (malformed_ > 0) {
      out_.notes.push_back(fmt::format("{}: {} rows without {} fields were left out; the first is in line {}",
                                       path_.string(), malformed_, columns_.size(), first_malformed_));
    }
    if (too_short_ > 0) {
      out_.notes.push_back(
          fmt::format("{}: {} rows were left out, their summary is empty or not shorter than 0.75 of "
                      "their text",
                      path_.string(), too_short_));
    }
  }

  const WikiHowOptions& o_;
  fs::path path_;
  MappedText text_;
  CsvReader csv_;
  std::optional<Titles> train_, validation_, test_;
  std::vector<std::string> columns_;
  std::size_t headline_ = 0, text_column_ = 0, title_ = 0;
  std::int64_t malformed_ = 0, first_malformed_ = 0, too_short_ = 0;
  WikiHow out_;
};

}  // namespace

void tidy_wikihow(std::string& headline, std::string& text) {
  const auto characters = [](const std::string& s) { return static_cast<double>(count_points(s)); };
  if (characters(headline) >= 0.75 * characters(text)) {
    headline.clear();
    text.clear();
    return;
  }
  for (std::size_t at = 0; (at = headline.find(".,", at)) != std::string::npos; ++at) headline.erase(at + 1, 1);
  text = without_comma_lines(text);
}

std::string clean_wikihow(std::string text) {
  for (const std::string_view part : {"Example of text:", "Example of Summary:", "\n", "``", "\""}) {
    remove_all(text, part);
  }
  return text;
}

WikiHow read_wikihow(const WikiHowOptions& options) {
  return Reader(options).read();
}

}  // namespace tessera::data
