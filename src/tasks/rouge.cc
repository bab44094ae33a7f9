#include "tasks/rouge.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "tasks/n_grams.h"
#include "tasks/porter_stemmer.h"

namespace tessera::tasks {
namespace {

using Stems = std::vector<std::string>;

/// 0: no letter or digit of English. In lower case, the way Python's lower() makes it: of letters beyond ASCII the
/// Kelvin sign and the dotted I become one within.
char word_character(char32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) return static_cast<char>(c);
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == 0x212A ? 'k' : c == 0x130 ? 'i' : '\0';
}

Stems stems_of(std::string_view text) {
  Stems words;
  std::string word;
  const auto end_word = [&] {
    if (word.size() > 3) word = porter_stem(std::move(word));
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  while (!text.empty()) {
    const char32_t c = next_code_point(text);
    const char letter = word_character(c);
    if (letter != '\0') word += letter;
    if (letter == '\0' || c == 0x130) end_word();  // its lower case ends with a combining dot
  }
  end_word();
  return words;
}

double f_measure(double matches, double predicted, double expected) {
  if (matches == 0) return 0;
  const double precision = matches / predicted, recall = matches / expected;
  return 2 * precision * recall / (precision + recall);
}

double rouge_n(const Stems& prediction, const Stems& reference, std::size_t n) {
  if (prediction.size() < n || reference.size() < n) return 0;
  return f_measure(count_matches(n_grams(prediction, n), n_grams(reference, n)),
                   static_cast<double>(prediction.size() - n + 1), static_cast<double>(reference.size() - n + 1));
}

double rouge_l(const Stems& prediction, const Stems& reference) {
  std::vector<int> longest(reference.size() + 1, 0);  // of the prediction so far with the first i words
  for (const auto& word : prediction) {
    int before = 0;  // the same without `word`, one word of the reference less
    for (std::size_t i = 1; i <= reference.size(); ++i) {
      const int old =
          std::exchange(longest[i], reference[i - 1] == word ? before + 1 : std::max(longest[i], longest[i - 1]));
      before = old;
    }
  }
  return f_measure(longest.back(), static_cast<double>(prediction.size()), static_cast<double>(reference.size()));
}

std::vector<Stems> lines_of(std::string_view text) {
  std::vector<Stems> lines;
  for (bool more = true; more;) {
    const auto end = text.find('\n');
    lines.push_back(stems_of(text.substr(0, end)));
    more = end != std::string_view::npos;
    if (more) text.remove_prefix(end + 1);
  }
  return lines;
}

/// Marks the words of `line` in one of its longest common subsequences with `other`: of several, rouge_score's.
void mark_common(const Stems& line, const Stems& other, std::vector<bool>& marked) {
  const auto columns = other.size() + 1;
  std::vector<int> longest((line.size() + 1) * columns, 0);  // of the first i words and the first j
  const auto at = [&](std::size_t i, std::size_t j) -> int& { return longest[i * columns + j]; };
  for (std::size_t i = 1; i <= line.size(); ++i)
    for (std::size_t j = 1; j <= other.size(); ++j)
      at(i, j) = line[i - 1] == other[j - 1] ? at(i - 1, j - 1) + 1 : std::max(at(i - 1, j), at(i, j - 1));
  for (std::size_t i = line.size(), j = other.size(); i > 0 && j > 0;) {
    if (line[i - 1] == other[j - 1]) {
      marked[--i] = true;
      --j;
    } else if (at(i, j - 1) > at(i - 1, j)) {
      --j;
    } else {
      --i;
    }
  }
}

/// A word counts no more often than either text has it, as in ROUGE 1.5.5.
double rouge_lsum(const std::vector<Stems>& prediction, const std::vector<Stems>& reference) {
  std::map<std::string, int> predicted, expected;  // words that are not matched yet
  double prediction_words = 0, reference_words = 0, hits = 0;
  for (const auto& line : prediction)
    for (const auto& word : line) ++predicted[word], ++prediction_words;
  for (const auto& line : reference)
    for (const auto& word : line) ++expected[word], ++reference_words;
  for (const auto& line : reference) {
    std::vector<bool> common(line.size(), false);
    for (const auto& other : prediction) mark_common(line, other, common);
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (!common[i] || predicted[line[i]] == 0 || expected[line[i]] == 0) continue;
      --predicted[line[i]], --expected[line[i]], ++hits;
    }
  }
  return f_measure(hits, prediction_words, reference_words);
}

}  // namespace

Rouge rouge(const std::vector<std::string>& predictions, const std::vector<std::string>& references) {
  Rouge sum;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto prediction = stems_of(predictions[i]), reference = stems_of(references.at(i));
    sum.rouge1 += rouge_n(prediction, reference, 1);
    sum.rouge2 += rouge_n(prediction, reference, 2);
    sum.rougeL += rouge_l(prediction, reference);
    sum.rougeLsum += rouge_lsum(lines_of(predictions[i]), lines_of(references[i]));
  }
  const auto rows = std::max(1.0, static_cast<double>(predictions.size()));
  return {sum.rouge1 / rows, sum.rouge2 / rows, sum.rougeL / rows, sum.rougeLsum / rows};
}

}  // namespace tessera::tasks
