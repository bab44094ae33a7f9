#include "data/preference_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "chat/jinja/runtime.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

[[noreturn]] void fail_empty(const SourceRow& row) {
  throw DataError(fmt::format("{}: \"chosen\" or \"rejected\" is empty, so there is no prompt in both; give the row a "
                              "\"prompt\", or leave it out",
                              where(row)),
                  *row.file, row.number);
}

bool begins_character(const std::string& text, std::size_t at) {
  return at >= text.size() || !is_continuation(text[at]);
}

PromptedPair of_texts(const std::string& chosen, const std::string& rejected, const SourceRow& row) {
  const auto shorter = std::min(chosen.size(), rejected.size());
  if (shorter == 0) fail_empty(row);
  std::size_t at = 0;
  while (at < shorter && chosen[at] == rejected[at]) ++at;
  const bool differ = at < shorter;
  if (!differ) --at;  // the last character of the shorter one stays with the completions
  while (at > 0 && (!begins_character(chosen, at) || !begins_character(rejected, at))) --at;
  if (differ && at > 0 && chosen[at - 1] == ' ') --at;
  return {Value(chosen.substr(0, at)), Value(chosen.substr(at)), Value(rejected.substr(at))};
}

}  // namespace

PromptedPair extract_prompt(const Value& chosen, const Value& rejected, const SourceRow& row) {
  if (chosen.is_text() && rejected.is_text()) return of_texts(chosen.text(), rejected.text(), row);
  const auto first = chat::iterate(chosen), second = chat::iterate(rejected);
  const auto shorter = std::min(first.size(), second.size());
  if (shorter == 0) fail_empty(row);
  std::size_t at = 0;
  while (at + 1 < shorter && chat::equal(first[at], second[at])) ++at;
  const auto border = static_cast<std::ptrdiff_t>(at);
  const auto list = [](auto begin, auto end) { return chat::make_list(std::vector<Value>(begin, end)); };
  return {list(first.begin(), first.begin() + border), list(first.begin() + border, first.end()),
          list(second.begin() + border, second.end())};
}

Value joined(const Value& first, const Value& second) {
  if (first.is_text()) return Value(first.text() + second.text());
  auto messages = chat::iterate(first);
  for (const auto& message : chat::iterate(second)) messages.push_back(message);
  return chat::make_list(std::move(messages));
}

}  // namespace tessera::data
