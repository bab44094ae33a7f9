#pragma once
// From text to typed value and back, for every type that an option may have.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::config {

/// y yes t true on 1 / n no f false off 0, in any case.
std::optional<bool> parse_bool(std::string_view text);

/// Words parted by commas, spaces or both; none is empty.
std::vector<std::string> split_words(std::string_view text);

/// A variable of some type, seen as text. Built by bind(); the variable must outlive it.
struct Binding {
  /// Assigns; false where the text is not of the type (the variable is then unchanged). A list takes any number of
  /// words, all others exactly one.
  std::function<bool(const std::vector<std::string>& words)> set;
  std::function<std::string()> show;  // "" for unset
  std::string expects;                // "an integer"
  std::string placeholder;            // "INT", for the help text
  bool is_bool = false;
  bool is_list = false;
  bool is_number = false;
  bool reads_none = false;  // set() takes "none"
};

Binding bind(std::string* target);
Binding bind(int* target);
Binding bind(std::int64_t* target);
Binding bind(double* target);
Binding bind(bool* target);
Binding bind(std::vector<std::string>* target);

/// An optional takes what its type takes, and "none" or "null" (any case) for unset.
template <class T>
Binding bind(std::optional<T>* target);

/// An enumeration by its names (any case), or by number: the first is 1.
template <class E>
Binding bind_names(E* target, std::vector<std::pair<std::string, E>> names);

namespace detail {
bool equal_ignoring_case(std::string_view a, std::string_view b);
bool is_none(const std::vector<std::string>& words);
/// The index of the name or 1-based number, -1 where it is neither.
int index_of(const std::vector<std::string>& names, const std::string& word);
std::string one_of(const std::vector<std::string>& names);
}  // namespace detail

template <class T>
Binding bind(std::optional<T>* target) {
  Binding binding = bind(static_cast<T*>(nullptr));  // for its descriptions only
  binding.reads_none = true;
  binding.set = [target](const std::vector<std::string>& words) {
    if (detail::is_none(words)) {
      target->reset();
      return true;
    }
    T value{};
    if (!bind(&value).set(words)) return false;
    *target = std::move(value);
    return true;
  };
  binding.show = [target] { return *target ? bind(&**target).show() : std::string(); };
  return binding;
}

template <class E>
Binding bind_names(E* target, std::vector<std::pair<std::string, E>> names) {
  std::vector<std::string> texts;
  for (const auto& [text, value] : names) texts.push_back(text);
  Binding binding;
  binding.expects = "one of " + detail::one_of(texts);
  binding.placeholder = "NAME";
  binding.set = [target, names, texts](const std::vector<std::string>& words) {
    const int index = words.size() == 1 ? detail::index_of(texts, words[0]) : -1;
    if (index < 0) return false;
    *target = names[static_cast<std::size_t>(index)].second;
    return true;
  };
  binding.show = [target, names]() -> std::string {
    for (const auto& [text, value] : names) {
      if (value == *target) return text;
    }
    return {};
  };
  return binding;
}

}  // namespace tessera::config
