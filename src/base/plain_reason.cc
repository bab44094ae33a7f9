#include "base/plain_reason.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Text = std::string_view;

// Takes `mark` off the front.
bool skip(Text& text, Text mark) {
  if (!text.starts_with(mark)) return false;
  text.remove_prefix(mark.size());
  return true;
}

Text up_to(Text text, Text mark) {
  return text.substr(0, text.find(mark));
}

// What lies behind `mark`; all of it where there is none.
Text behind(Text text, Text mark) {
  const auto at = text.find(mark);
  return at == Text::npos ? text : text.substr(at + mark.size());
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing value - reason".
std::string of_json(Text text) {
  text = behind(text, "] ");
  if (skip(text, "parse error")) {
    const Text place = up_to(text, ": "), reason = behind(text, ": ");
    return fmt::format("not valid JSON{}: {}", place,
                       reason.starts_with("syntax error") ? behind(reason, " - ") : reason);
  }
  if (const auto found = behind(text, ", but is "); text.find("type must be ") != Text::npos && found != text)
    return fmt::format("expected {}, found {}", up_to(behind(text, "type must be "), ","), found);
  if (text.starts_with("cannot use ") && text.find(" with ") != Text::npos)
    return fmt::format("found {} where another kind of value belongs", behind(text, " with "));
  if (text.starts_with("key '") && text.ends_with("' not found"))
    return fmt::format("the key \"{}\" is missing", up_to(behind(text, "key '"), "' not found"));
  if (text.starts_with("array index ")) return fmt::format("a list is too short, {}", text.substr(6));
  return std::string(text);
}

// "filesystem error: cannot open: reason [file] [other]".
std::string of_files(Text text) {
  const Text file = up_to(behind(text, " ["), "]"), reason = up_to(text, " [");
  const auto last = reason.rfind(": ");
  return fmt::format("'{}': {}", file, last == Text::npos ? reason : reason.substr(last + 2));
}

bool is_code(Text text) {
  return text.size() > 2 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

bool begins_with_one_of(Text text, std::initializer_list<Text> marks) {
  return std::any_of(marks.begin(), marks.end(), [&](Text mark) { return text.starts_with(mark); });
}

}  // namespace

std::string plain_reason(Text what) {
  Text text = up_to(what, "\n");
  if (text.starts_with("[json.exception.")) return of_json(text);
  if (skip(text, "filesystem error: ")) return of_files(text);
  if (text == "std::bad_alloc") return "not enough memory";
  if (const auto bytes = behind(text, "you tried to allocate "); bytes != text)
    return fmt::format("not enough memory: {} more were needed", up_to(bytes, "."));
  // "CODE: reason" (simdjson)
  if (const Text code = up_to(text, ": "); code != text && is_code(code)) return std::string(behind(text, ": "));
  if (begins_with_one_of(text, {"stoi", "stol", "stoul", "stod", "stof"})) return "a number is not written as one";
  if (begins_with_one_of(text,
                         {"vector::", "map::at", "_Map_base::at", "basic_string::", "basic_string_view::", "array::at",
                          "bad optional access", "std::get: ", "bad_variant_access", "unordered_map::at"}))
    return "its content has another form than expected";
  // libtorch: the place in its sources, and advice to its authors.
  if (text.starts_with("[enforce fail at ")) text = behind(text, "] ");
  text = up_to(text, " (Could this error message be improved?");
  return std::string(up_to(text, " Exception raised from "));
}

std::string plain_reason(const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return error.what();
  return plain_reason(Text(error.what()));
}

}  // namespace tessera
