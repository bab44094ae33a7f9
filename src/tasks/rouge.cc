#include "tasks/rouge.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/utf8.h"
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

std::map<Stems, int> n_grams(const Stems& words, std::size_t n) {
  std::map<Stems, int> counts;
  for (auto begin = words.begin(); words.end() - begin >= std::ptrdiff_t(n); ++begin)
    ++counts[{begin, begin + std::ptrdiff_t(n)}];
  return counts;
}

double rouge_n(const Stems& prediction, const Stems& reference, std::size_t n) {
  if (prediction.size() < n || reference.size() < n) return 0;
  const auto predicted = n_grams(prediction, n), expected = n_grams(reference, n);
  int matches = 0;
  for (const auto& [words, count] : expected)
    if (const auto found = predicted.find(words); found != predicted.end()) matches += std::min(count, found->second);
  return f_measure(matches, static_cast<double>(prediction.size() - n + 1),
                   static_cast<double>(reference.size() - n + 1));
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

}  // namespace

Rouge rouge(const std::vector<std::string>& predictions, const std::vector<std::string>& references) {
  Rouge sum;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto prediction = stems_of(predictions[i]), reference = stems_of(references.at(i));
    sum.rouge1 += rouge_n(prediction, reference, 1);
    sum.rouge2 += rouge_n(prediction, reference, 2);
    sum.rougeL += rouge_l(prediction, reference);
  }
  const auto rows = std::max(1.0, static_cast<double>(predictions.size()));
  return {sum.rouge1 / rows, sum.rouge2 / rows, sum.rougeL / rows};
}

}  // namespace tessera::tasks
