// Flags that change nothing: always, or beside what else the command line says.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/options.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

/// Whether a text stands for something that is switched on or set.
bool is_something(const std::string& text) {
  return !text.empty() && text != "0" && text != "false" && text != "no" && text != "none" && text[0] != '-';
}

bool is_one_of(const std::string& text, const std::vector<std::string>& values) {
  return std::any_of(values.begin(), values.end(),
                     [&](const std::string& value) { return value == text || (value == kSet && is_something(text)); });
}

/// "--eval_strategy steps (or epoch)", "--use_peft_lora".
std::string as_typed(const Need& need) {
  const std::string& value = need.values.front();
  std::string text = need.flag;
  if (value != kSet && value != "true") text += " " + value;
  for (std::size_t i = 1; i < need.values.size(); ++i)
    text += (i == 1 ? " (or " : ", ") + need.values[i] + (i + 1 == need.values.size() ? ")" : "");
  return text;
}

}  // namespace

Option& Option::only_with(std::vector<Need> any) {
  needs_.push_back(std::move(any));
  return *this;
}

Option& Option::idle_with(Need obstacle) {
  obstacles_.push_back(std::move(obstacle));
  return *this;
}

Option& Option::implies(std::string flag, std::string value) {
  implied_.emplace_back(flag, value);
  return only_with({{std::move(flag), {std::move(value)}}});
}

Option& Option::without_effect(std::string why) {
  effect_ = Effect::kNone;
  help_ = std::move(why);
  return *this;
}

Option& OptionTable::add_unused(const char* name, Unused type, const char* why, const char* group) {
  // For their descriptions; what is set has no place to go.
  Binding binding = type == Unused::kBool     ? bind(static_cast<bool*>(nullptr))
                    : type == Unused::kNumber ? bind(static_cast<double*>(nullptr))
                    : type == Unused::kList   ? bind(static_cast<std::vector<std::string>*>(nullptr))
                                              : bind(static_cast<std::string*>(nullptr));
  binding.is_bool |= type == Unused::kMaybeText;
  binding.set = [type](const std::vector<std::string>& words) {
    double number = 0;
    if (type == Unused::kList) return true;
    if (type == Unused::kText || type == Unused::kMaybeText || detail::is_none(words)) return words.size() == 1;
    return type == Unused::kNumber ? bind(&number).set(words) : words.size() == 1 && parse_bool(words[0]).has_value();
  };
  binding.show = [] { return std::string(); };
  return add_binding(std::move(binding), {name}, why, group);
}

Option& OptionTable::add_without_effect(const UnusedFlag& flag) {
  return add_unused(flag.name, flag.type, flag.why, "Accepted without effect").without_effect(flag.why);
}

Option& OptionTable::add_refused(const RefusedFlag& flag) {
  Option& option = add_unused(flag.name, flag.type, flag.why, "Known, but refused");
  option.effect_ = Option::Effect::kRefused;
  option.harmless_ = flag.harmless;
  return option;
}

bool OptionTable::is_refused(const Option& option, const std::vector<std::string>& words) {
  if (option.effect_ != Option::Effect::kRefused) return false;
  const std::string word = words.empty() ? "" : words[0];
  const bool off = word.empty() || word == "{}" || word == option.harmless_ || detail::is_none(words);
  return !off && parse_bool(word) != false;
}

void OptionTable::imply() {
  for (const Option& option : options_) {
    if (!option.given_ || option.binding_.show().empty()) continue;
    for (const auto& [flag, value] : option.implied_) {
      const Option* other = find(flag);
      TESSERA_CHECK(other != nullptr, option.names_[0] + " implies an unknown flag, " + flag);
      if (!other->given_) other->binding_.set({value});
    }
  }
}

bool OptionTable::holds(const Need& need) const {
  if (is_one_of(text(need.flag), need.values)) return true;
  const std::vector<std::string> words = split_words(text(need.flag));  // of a list one is enough
  return words.size() > 1 &&
         std::any_of(words.begin(), words.end(), [&](const std::string& word) { return is_one_of(word, need.values); });
}

std::string OptionTable::why_idle(const Option& option) const {
  if (option.effect_ == Option::Effect::kNone) return " has no effect: " + option.help_;
  if (option.binding_.show() == option.default_) return {};
  for (const Need& obstacle : option.obstacles_) {
    if (holds(obstacle)) return " has no effect with " + obstacle.flag + " " + text(obstacle.flag);
  }
  for (const std::vector<Need>& any : option.needs_) {
    if (std::any_of(any.begin(), any.end(), [&](const Need& need) { return holds(need); })) continue;
    std::vector<std::string> typed;
    for (const Need& need : any) typed.push_back(as_typed(need));
    return fmt::format(" has no effect without {}", fmt::join(typed, " or "));
  }
  return {};
}

std::vector<std::string> OptionTable::notes() const {
  std::vector<std::string> notes;
  for (const Option& option : options_) {
    const std::string why = option.given_ ? why_idle(option) : std::string();
    if (!why.empty()) notes.push_back(option.names_[0] + why);
  }
  return notes;
}

}  // namespace tessera::config
