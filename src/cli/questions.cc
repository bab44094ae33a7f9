#include "cli/questions.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "config/option_value.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  return begin == text.npos ? "" : std::string(text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1));
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

Questions::Questions(int input, std::ostream& out)
    : input_(input),
      out_(out),
      is_terminal_(::isatty(input) == 1 && ::isatty(STDOUT_FILENO) == 1),
      lines_(input, "the answers", [&out] { out.flush(); }) {}

std::string Questions::ask(const std::string& prompt) {
  out_ << prompt << std::flush;
  std::string_view line;
  if (!lines_.next(line)) {
    throw ConfigError("the answers ended at the question '" + trimmed(prompt) +
                      "'; give one line for each question, an empty one for what is proposed");
  }
  if (::isatty(input_) != 1) out_ << line << "\n";  // a terminal shows what is typed
  return trimmed(line);
}

std::size_t Questions::choose(const std::string& question, const std::vector<std::string>& choices,
                              std::size_t proposed) {
  out_ << question << "\n";
  if (is_terminal_) return choose_on_terminal(input_, out_, choices, proposed);
  for (std::size_t i = 0; i < choices.size(); ++i) out_ << fmt::format("  [{}] {}\n", i, choices[i]);
  while (true) {
    const std::string answer = ask(fmt::format("number [{}]: ", proposed));
    if (answer.empty()) return proposed;
    for (std::size_t i = 0; i < choices.size(); ++i)
      if (config::detail::equal_ignoring_case(answer, choices[i])) return i;
    const auto number = whole_number(answer);
    if (number && *number >= 0 && *number < static_cast<std::int64_t>(choices.size()))
      return static_cast<std::size_t>(*number);
    out_ << fmt::format("Please enter a number from 0 to {}.\n", choices.size() - 1);
  }
}

bool Questions::yes_no(const std::string& question, bool proposed) {
  while (true) {
    const std::string answer = ask(fmt::format("{} [{}]: ", question, proposed ? "YES/no" : "yes/NO"));
    if (answer.empty()) return proposed;
    for (const char* yes : {"yes", "y"})
      if (config::detail::equal_ignoring_case(answer, yes)) return true;
    for (const char* no : {"no", "n"})
      if (config::detail::equal_ignoring_case(answer, no)) return false;
    out_ << "Please enter yes or no.\n";
  }
}

std::int64_t Questions::number(const std::string& question, std::int64_t proposed, std::int64_t lowest,
                               std::int64_t highest) {
  while (true) {
    const std::string answer = ask(fmt::format("{} [{}]: ", question, proposed));
    if (answer.empty()) return proposed;
    if (const auto value = whole_number(answer); value && *value >= lowest && *value <= highest) return *value;
    out_ << fmt::format("Please enter a whole number from {} to {}.\n", lowest, highest);
  }
}

std::string Questions::text(const std::string& question, const std::string& proposed) {
  while (true) {
    const std::string answer = ask(proposed.empty() ? question + ": " : fmt::format("{} [{}]: ", question, proposed));
    if (!answer.empty()) return answer;
    if (!proposed.empty()) return proposed;
    out_ << "Please enter something.\n";
  }
}

}  // namespace tessera::cli
