#include "config/option_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace tessera::config {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// Without a plus sign, and underscores between digits, which say nothing (Python's "1_000").
std::string plain_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto is_digit = [&](std::size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i]));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) out += text[i];
  return out;
}

std::optional<double> parse_double(std::string_view given) {
  const std::string text = plain_number(given);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || std::isnan(value)) return std::nullopt;
  return value;
}

/// Also "1e8": people write large counts so.
std::optional<std::int64_t> parse_integer(std::string_view given) {
  const std::string text = plain_number(given);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  constexpr double kExact = 9007199254740992.0;  // 2^53: every integer below is a double
  const auto number = parse_double(text);
  if (!number || std::abs(*number) > kExact || *number != std::floor(*number)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

template <class T, class Parse>
Binding scalar(T* target, const char* expects, const char* placeholder, Parse parse) {
  Binding binding;
  binding.expects = expects;
  binding.placeholder = placeholder;
  binding.set = [target, parse](const std::vector<std::string>& words) {
    const auto value = words.size() == 1 ? parse(words[0]) : std::nullopt;
    if (value) *target = *value;
    return value.has_value();
  };
  binding.show = [target] { return fmt::format("{}", *target); };
  return binding;
}

template <class T, class Parse>
Binding number(T* target, const char* expects, const char* placeholder, Parse parse) {
  Binding binding = scalar(target, expects, placeholder, parse);
  binding.is_number = true;
  return binding;
}

}  // namespace

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower(text);
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',' || std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Binding bind(std::string* target) {
  return scalar(target, "a text", "TEXT", [](const std::string& text) { return std::optional<std::string>(text); });
}

Binding bind(int* target) {
  return number(target, "an integer", "INT", [](const std::string& text) -> std::optional<int> {
    const auto value = parse_integer(text);
    if (!value || *value != static_cast<int>(*value)) return std::nullopt;
    return static_cast<int>(*value);
  });
}

Binding bind(std::int64_t* target) {
  return number(target, "an integer", "INT", parse_integer);
}

Binding bind(double* target) {
  return number(target, "a number", "NUMBER", parse_double);
}

Binding bind(bool* target) {
  Binding binding = scalar(target, "true or false", "BOOL", parse_bool);
  binding.is_bool = true;
  return binding;
}

Binding bind(std::vector<std::string>* target) {
  Binding binding;
  binding.expects = "words parted by commas or spaces";
  binding.placeholder = "LIST";
  binding.is_list = true;
  binding.set = [target](const std::vector<std::string>& words) {
    *target = words;
    return true;
  };
  binding.show = [target] { return fmt::format("{}", fmt::join(*target, ",")); };
  return binding;
}

namespace detail {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return lower(a) == lower(b);
}

bool is_none(const std::vector<std::string>& words) {
  return words.size() == 1 && (equal_ignoring_case(words[0], "none") || equal_ignoring_case(words[0], "null"));
}

int index_of(const std::vector<std::string>& names, const std::string& word) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (equal_ignoring_case(names[i], word)) return static_cast<int>(i);
  }
  const auto number = parse_integer(word);
  const bool in_range = number && *number >= 1 && *number <= static_cast<std::int64_t>(names.size());
  return in_range ? static_cast<int>(*number - 1) : -1;
}

std::string one_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace detail
}  // namespace tessera::config
