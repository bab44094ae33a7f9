#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_text.h"
#include "config/options.h"

namespace tessera::config {
namespace {

constexpr std::size_t kIndent = 34, kWidth = 110;

/// Breaks at spaces; continuation lines stand under the first.
std::string wrap(const std::string& text) {
  std::string out, word;
  std::size_t column = kIndent;
  const auto flush = [&] {
    if (column + word.size() > kWidth && column > kIndent) {
      out += "\n" + std::string(kIndent, ' ');
      column = kIndent;
    }
    out += word;
    column += word.size();
    word.clear();
  };
  for (const char c : text) {
    word += c;
    if (c == ' ') flush();
  }
  flush();
  return out;
}

std::string entry(const std::string& left, const std::string& right) {
  const std::string gap =
      left.size() + 2 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - left.size(), ' ');
  return left + gap + wrap(right) + "\n";
}

constexpr const char* kWithoutEffect = "Accepted without effect";

}  // namespace

std::string OptionTable::shown_group(const Option& option) {
  return option.effect_ == Option::Effect::kNone ? kWithoutEffect : option.group_;
}

OptionTable& OptionTable::example(std::string arguments) {
  example_ = std::move(arguments);
  return *this;
}

std::vector<const Option*> OptionTable::options_of(const std::string& group) const {
  std::vector<const Option*> all;
  for (const bool required : {true, false})
    for (const Option& option : options_)
      if (option.required_ == required && shown_group(option) == group) all.push_back(&option);
  return all;
}

std::string OptionTable::usage() const {
  std::string usage = command_;
  for (const Option& option : options_) {
    if (!option.positional_ && usage.find(" [flags]") == std::string::npos) usage += " [flags]";
  }
  for (const Option& option : options_) {
    if (!option.positional_) continue;
    usage += option.required_ ? " " + option.names_[0] : " [" + option.names_[0] + "]";
    if (option.binding_.is_list && !option.takes_rest_) usage += " [" + option.names_[0] + "...]";
  }
  return usage;
}

std::string OptionTable::json_help() const {
  using Json = nlohmann::ordered_json;
  Json options = Json::array();
  for (const Option& o : options_) {
    const char* effect = o.effect_ == Option::Effect::kWorks  ? "works"
                         : o.effect_ == Option::Effect::kNone ? "none"
                                                              : "refused";
    std::vector<std::string> choices = o.choices_;
    if (choices.empty() && o.binding_.expects.starts_with("one of "))
      choices = split_words(o.binding_.expects.substr(7));
    options.push_back({{"names", o.names_},
                       {"positional", o.positional_},
                       {"group", shown_group(o)},
                       {"help", o.help_},
                       {"value", o.positional_ ? "" : o.binding_.placeholder},
                       {"choices", o.binding_.is_bool ? std::vector<std::string>{"true", "false"} : choices},
                       {"required", o.required_},
                       {"default", o.default_},
                       {"effect", effect}});
  }
  return json_text(Json{{"command", command_},
                        {"summary", summary_},
                        {"usage", usage()},
                        {"example", example_},
                        {"options", options}}) +
         "\n";
}

std::string OptionTable::help() const {
  if (json_help_) return json_help();
  // In the order of their first options; groups of flags that do nothing stand last, in a group what must be given
  // first.
  std::vector<std::string> groups;
  for (const bool works : {true, false}) {
    for (const Option& option : options_) {
      const std::string group = shown_group(option);
      const bool known = std::find(groups.begin(), groups.end(), group) != groups.end();
      if (!known && works == (option.effect_ == Option::Effect::kWorks)) groups.push_back(group);
    }
  }
  std::string out = fmt::format("{}: {}\n\nUsage: {}\n", command_, summary_, usage());
  if (!has_positionals()) out += "\nFlags may also stand in a YAML or JSON file: --config FILE, or FILE alone.\n";
  if (!example_.empty()) out += fmt::format("\nExample\n  {} {}\n", command_, example_);
  for (const std::string& group : groups) {
    out += fmt::format("\n{}\n", group);
    for (const Option* shown : options_of(group)) {
      const Option& option = *shown;
      std::string left = fmt::format("  {}", fmt::join(option.names_, ", "));
      std::string right = option.help_;
      if (!option.positional_) {
        left += option.binding_.is_bool ? " [BOOL]" : " " + option.binding_.placeholder;
        if (!option.choices_.empty()) right += ": " + detail::one_of(option.choices_);
        if (option.binding_.expects.starts_with("one of ")) right += ": " + option.binding_.expects.substr(7);
        if (option.required_) right += " (required)";
        if (!option.default_.empty()) right += fmt::format(" (default: {})", option.default_);
      }
      out += entry(left, right);
    }
  }
  return out;
}

}  // namespace tessera::config
