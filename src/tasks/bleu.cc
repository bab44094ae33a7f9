#include "tasks/bleu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "tasks/n_grams.h"
#include "text/unicode.h"

namespace tessera::tasks {
namespace {

using Words = std::vector<std::string>;

/// As Python's str.split().
bool separates_words(char32_t c) {
  return text::is_whitespace(c) || (c >= 0x1C && c <= 0x1F);
}

Words words_of(std::string_view text) {
  Words words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  };
  while (!text.empty()) {
    const char32_t c = next_code_point(text);
    if (separates_words(c))
      end_word();
    else
      append_utf8(c, word);
  }
  end_word();
  return words;
}

std::string_view without_space_behind(std::string_view text) {
  std::size_t end = 0;
  for (auto rest = text; !rest.empty();)
    if (!separates_words(next_code_point(rest))) end = text.size() - rest.size();
  return text.substr(0, end);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_point(char c) {
  return c == '.' || c == ',';
}
/// Of ASCII all but letters, digits, and ' , - .
bool is_symbol(char c) {
  return (c >= ' ' && c <= '~') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !is_digit(c) && !is_point(c) &&
         c != '\'' && c != '-';
}

/// Puts spaces between and around what `splits` says of two bytes that follow each other; a byte is in one pair at
/// most.
template <class Splits>
std::string split_pairs(std::string_view text, std::string_view before, std::string_view behind, const Splits& splits) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !splits(text[i], text[i + 1])) {
      out += text[i];
      continue;
    }
    ((out += before) += text[i]) += ' ';
    (out += text[++i]) += behind;
  }
  return out;
}

/// mteval-v13a's rules, which sacrebleu calls 13a. No rule looks beyond ASCII, so bytes will do.
Words cut_13a(std::string_view text) {
  std::string line(without_space_behind(text));
  replace_all(line, "<skipped>", "");
  replace_all(line, "-\n", "");
  replace_all(line, "\n", " ");
  replace_all(line, "&quot;", "\"");
  replace_all(line, "&amp;", "&");
  replace_all(line, "&lt;", "<");
  replace_all(line, "&gt;", ">");
  std::string spaced = " ";
  for (const char c : line) {
    if (is_symbol(c))
      ((spaced += ' ') += c) += ' ';
    else
      spaced += c;
  }
  spaced += ' ';
  spaced = split_pairs(spaced, "", " ", [](char a, char b) { return !is_digit(a) && is_point(b); });
  spaced = split_pairs(spaced, " ", "", [](char a, char b) { return is_point(a) && !is_digit(b); });
  spaced = split_pairs(spaced, "", " ", [](char a, char b) { return is_digit(a) && b == '-'; });
  return words_of(spaced);
}

}  // namespace

double bleu(const std::vector<std::string>& predictions, const std::vector<std::string>& references) {
  constexpr std::size_t kOrders = 4;
  std::array<std::int64_t, kOrders> right{}, total{};
  std::int64_t predicted = 0, expected = 0;  // words
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto prediction = cut_13a(predictions[i]), reference = cut_13a(references.at(i));
    predicted += std::ssize(prediction);
    expected += std::ssize(reference);
    for (std::size_t n = 1; n <= kOrders; ++n) {
      right[n - 1] += count_matches(n_grams(prediction, n), n_grams(reference, n));
      total[n - 1] += std::max<std::int64_t>(0, std::ssize(prediction) - static_cast<std::int64_t>(n) + 1);
    }
  }
  if (right[0] == 0 || total[kOrders - 1] == 0) return 0;  // longer runs cannot match; or all texts are shorter
  double log_precisions = 0, smoothed = 1;
  for (std::size_t n = 0; n < kOrders; ++n) {
    const double matched = right[n] > 0 ? static_cast<double>(right[n]) : 1 / (smoothed *= 2);
    log_precisions += std::log(100 * matched / static_cast<double>(total[n]));
  }
  const double brevity =
      predicted < expected ? std::exp(1 - static_cast<double>(expected) / static_cast<double>(predicted)) : 1;
  return brevity * std::exp(log_precisions / kOrders);
}

}  // namespace tessera::tasks
