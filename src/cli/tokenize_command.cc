#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>

#include "base/line_reader.h"
#include "base/plain_reason.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "hub/model_folder.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::cli {
namespace {

// A JSON string, or an object with one under "text".
std::string_view text_of(std::string_view line, std::int64_t number, simdjson::dom::parser& parser) {
  const auto fail = [number](const std::string& what) {
    throw DataError(
        fmt::format("line {}: {}; a row is a JSON string, or an object with the key \"text\"", number, what),
        "standard input", number);
  };
  simdjson::dom::element row;
  std::string_view text;
  if (const auto error = parser.parse(line.data(), line.size()).get(row))
    fail(plain_reason(simdjson::error_message(error)));
  if (!row.get(text)) return text;
  if (!row.is_object()) fail("expected a JSON string or an object");
  simdjson::dom::element value;
  if (row["text"].get(value)) fail("the key \"text\" is missing");
  if (value.get(text)) fail("\"text\" must be a string");
  return text;
}

// Bytes of a line separator other than \n: they are escaped, since many readers break lines there.
std::size_t line_separator(std::string_view text) {
  if (text.starts_with("\xC2\x85")) return 2;
  return text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9") ? 3 : 0;
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  std::size_t plain = 0;  // where the bytes that need no escape begin
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto separator = c == 0xC2 || c == 0xE2 ? line_separator(text.substr(i)) : 0;
    if (c >= 0x20 && c != '"' && c != '\\' && separator == 0) continue;
    out.append(text, plain, i - plain);
    if (separator > 0)
      out += separator == 2 ? "\\u0085" : text[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
    else if (c == '"' || c == '\\')
      (out += '\\') += static_cast<char>(c);
    else
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    i += separator > 0 ? separator - 1 : 0;
    plain = i + 1;
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

void append_row(const text::Encoding& encoding, std::string_view decoded, std::string& out) {
  out += "{\"ids\": [";
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    if (i > 0) out += ", ";
    out.append(fmt::format_int(encoding.ids[i]).c_str());
  }
  out += "], \"offsets\": [";
  for (std::size_t i = 0; i < encoding.offsets.size(); ++i) {
    out += i > 0 ? ", [" : "[";
    out.append(fmt::format_int(encoding.offsets[i].first).c_str()).append(", ");
    out.append(fmt::format_int(encoding.offsets[i].second).c_str()) += ']';
  }
  out += "], \"decoded\": ";
  append_json_string(decoded, out);
  out += "}\n";
}

}  // namespace

int tokenize_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::string path, one_text;
  bool add_special_tokens = true;
  config::OptionTable table(
      "tessera tokenize",
      "takes --text, or rows from standard input, each a JSON string or an object with the key \"text\", and "
      "prints for each {\"ids\": [...], \"offsets\": [[begin, end], ...], \"decoded\": \"...\"}; "
      "offsets count code points");
  table.example("--tokenizer t5-base < rows.jsonl");
  table.add(&path, {"--tokenizer"}, "folder of a tokenizer, or one of its files").required().placeholder("PATH");
  table.add(&one_text, {"--text"}, "the one text, in place of standard input");
  table.add(&add_special_tokens, {"--add_special_tokens"}, "add what the model expects around a text (bos, eos, ...)");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  const auto tokenizer = text::open_tokenizer(hub::find_settings(path));
  std::string rows;
  const auto flush = [&] {
    out.write(rows.data(), static_cast<std::streamsize>(rows.size())).flush();
    rows.clear();
  };
  const auto add_row = [&](std::string_view row) {
    const auto encoding = tokenizer->encode(row, add_special_tokens);
    append_row(encoding, tokenizer->decode(encoding.ids), rows);
  };
  if (table.given("--text")) {
    if (const auto at = find_malformed_utf8(one_text))
      throw ConfigError(fmt::format("--text is not UTF-8 at byte {}", *at + 1), "text");
    add_row(one_text);
    flush();
    return kSuccess;
  }
  LineReader lines(STDIN_FILENO, "standard input", flush);
  simdjson::dom::parser parser;
  try {
    for (std::string_view line; lines.next(line);) {
      if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
      add_row(text_of(line, lines.number(), parser));
      if (rows.size() > (1 << 16)) flush();
    }
  } catch (...) {
    flush();  // the rows before the bad one
    throw;
  }
  flush();
  return kSuccess;
}

}  // namespace tessera::cli
