#pragma once
// A place in tokenizer.json: an element and the path to it, so that every error names the key at fault.
#include <fmt/format.h>
#include <simdjson.h>

#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::text {

class JsonPlace {
 public:
  JsonPlace(simdjson::dom::element element, std::string file, std::string path)
      : element_(element), file_(std::move(file)), path_(std::move(path)) {}

  std::string where() const { return fmt::format("{}: {}", file_, path_.empty() ? "the document" : path_); }
  [[noreturn]] void fail(const std::string& what) const { throw DataError(where() + ": " + what, file_); }

  bool has(const char* key) const {  // present and not null
    simdjson::dom::element value;
    return !element_[key].get(value) && !value.is_null();
  }
  JsonPlace at(std::string_view key) const {
    simdjson::dom::element value;
    if (element_[key].get(value)) fail(fmt::format("expected a key \"{}\"", key));
    return {value, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
  }
  std::vector<JsonPlace> items() const {
    simdjson::dom::array array;
    if (element_.get(array)) fail("expected an array");
    std::vector<JsonPlace> out;
    for (auto value : array) out.emplace_back(value, file_, fmt::format("{}[{}]", path_, out.size()));
    return out;
  }
  std::string string() const { return std::string(get<std::string_view>("a string")); }
  std::int64_t integer() const { return get<std::int64_t>("an integer"); }
  double number() const { return get<double>("a number"); }
  bool boolean() const { return get<bool>("true or false"); }

  std::string string_or(const char* key, const std::string& fallback) const {
    return has(key) ? at(key).string() : fallback;
  }
  bool boolean_or(const char* key, bool fallback) const { return has(key) ? at(key).boolean() : fallback; }
  const simdjson::dom::element& element() const { return element_; }

  /// Exactly one code point.
  char32_t code_point() const;

 private:
  template <class T>
  T get(const char* kind) const {
    T out{};
    if (element_.get(out)) fail(fmt::format("expected {}", kind));
    return out;
  }

  simdjson::dom::element element_;
  std::string file_, path_;
};

}  // namespace tessera::text
