#include <fmt/format.h>
#include <simdjson.h>

#include "base/plain_reason.h"
#include "data/row_table.h"
#include "data/text_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

struct Scalar {
  std::string text;
  bool is_integer = false;
};

Scalar scalar(const std::string& file, std::int64_t line, const std::string& column, const element& value) {
  switch (value.type()) {
    case element_type::STRING:
      return {std::string(std::string_view(value)), false};
    case element_type::INT64:
    case element_type::UINT64:
      return {simdjson::minify(value), true};
    case element_type::DOUBLE:
    case element_type::BOOL:
      return {simdjson::minify(value), false};
    default:
      throw DataError(fmt::format("{}:{}: column '{}' must be a string or a number, found {}", file, line, column,
                                  simdjson::minify(value).substr(0, 60)),
                      file, line);
  }
}

TextPair read_row(const std::string& file, std::int64_t line, const element& row, const ReadOptions& options) {
  simdjson::dom::object object;
  if (row.get(object)) throw DataError(fmt::format("{}:{}: expected a JSON object", file, line), file, line);
  std::vector<std::string> columns;
  for (auto field : object) columns.emplace_back(field.key);
  const auto names = choose_columns(file, line, columns, options);
  auto source = scalar(file, line, names.text, object.at_key(names.text));
  const element target = object.at_key(names.label);
  const auto text_of = [&](const element& value) {
    const auto label = scalar(file, line, names.label, value);
    return label_text(file, line, label.text, label.is_integer, options);
  };
  if (!options.takes_lists || !target.is_array()) return {std::move(source.text), text_of(target), file, line};
  std::string list = target.get_array().size() == 0 ? "\n" : "";
  for (const element value : target.get_array()) list += text_of(value) + "\n";
  return {std::move(source.text), std::move(list), file, line};
}

template <class Source>
std::vector<TextPair> read_rows(const std::string& file, std::string_view text, const ReadOptions& options) {
  simdjson::dom::parser parser;
  std::vector<TextPair> rows;
  Source source(file, text);
  for (std::string_view json; source.next(json);) {
    element row;
    const auto number = source.number();
    if (const auto error = parser.parse(json.data(), json.size()).get(row))
      throw DataError(fmt::format("{}:{}: not JSON: {}", file, number, plain_reason(simdjson::error_message(error))),
                      file, number);
    rows.push_back(read_row(file, number, row, options));
  }
  return rows;
}

}  // namespace

std::vector<TextPair> read_jsonl(const std::string& file, std::string_view text, const ReadOptions& options) {
  return read_rows<TextLines>(file, text, options);
}

std::vector<TextPair> read_json(const std::string& file, std::string_view text, const ReadOptions& options) {
  return read_rows<JsonElements>(file, text, options);
}

}  // namespace tessera::data
