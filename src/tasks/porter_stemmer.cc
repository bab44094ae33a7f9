#include "tasks/porter_stemmer.h"

#include <array>
#include <span>
#include <string_view>
#include <utility>

namespace tessera::tasks {
namespace {

/// Of each letter: is it a consonant? Y is one at the word's begin and behind a vowel.
std::string classes_of(std::string_view word) {
  std::string classes;
  for (const char letter : word) {
    const bool is_vowel = std::string_view("aeiou").find(letter) != std::string_view::npos ||
                          (letter == 'y' && !classes.empty() && classes.back() == 'c');
    classes += is_vowel ? 'v' : 'c';
  }
  return classes;
}

/// Porter's m: how often a vowel is followed by a consonant.
int measure(std::string_view stem) {
  const std::string classes = classes_of(stem);
  int count = 0;
  for (std::size_t i = 1; i < classes.size(); ++i) count += classes[i - 1] == 'v' && classes[i] == 'c';
  return count;
}

bool has_vowel(std::string_view stem) {
  return classes_of(stem).find('v') != std::string::npos;
}

bool ends_in_double_consonant(std::string_view word) {
  const auto n = word.size();
  return n >= 2 && word[n - 1] == word[n - 2] && classes_of(word).back() == 'c';
}

/// Porter's *o: consonant, vowel, consonant, the last none of w, x, y; NLTK's: also a word of vowel and consonant.
bool ends_in_short_syllable(std::string_view word) {
  const std::string classes = classes_of(word);
  if (word.size() == 2) return classes == "vc";
  return classes.ends_with("cvc") && std::string_view("wxy").find(word.back()) == std::string_view::npos;
}

std::string without(const std::string& word, std::string_view suffix) {
  return word.substr(0, word.size() - suffix.size());
}

using Suffixes = std::span<const std::pair<std::string_view, std::string_view>>;

/// The first suffix that the word has is replaced where enough of the word is left.
std::string replaced(const std::string& word, Suffixes suffixes, int measure_above) {
  for (const auto& [suffix, replacement] : suffixes) {
    if (!word.ends_with(suffix)) continue;
    const auto stem = without(word, suffix);
    return measure(stem) > measure_above ? stem + std::string(replacement) : word;
  }
  return word;
}

std::string without_plural(const std::string& word) {  // step 1a
  if (word.ends_with("sses")) return without(word, "es");
  if (word.ends_with("ies")) return without(word, word.size() == 4 ? "s" : "es");
  return word.ends_with("s") && !word.ends_with("ss") ? without(word, "s") : word;
}

std::string without_ed_and_ing(const std::string& word) {  // step 1b
  if (word.ends_with("ied")) return without(word, word.size() == 4 ? "d" : "ed");
  if (word.ends_with("eed")) return measure(without(word, "eed")) > 0 ? without(word, "d") : word;
  std::string stem = word;
  for (const std::string_view suffix : {"ed", "ing"})
    if (stem == word && word.ends_with(suffix) && has_vowel(without(word, suffix))) stem = without(word, suffix);
  if (stem == word) return word;
  if (stem.ends_with("at") || stem.ends_with("bl") || stem.ends_with("iz")) return stem + "e";
  if (ends_in_double_consonant(stem))
    return std::string_view("lsz").find(stem.back()) == std::string_view::npos ? without(stem, "x") : stem;
  return measure(stem) == 1 && ends_in_short_syllable(stem) ? stem + "e" : stem;
}

std::string with_i_for_y(const std::string& word) {  // step 1c
  const auto stem = word.ends_with("y") ? without(word, "y") : std::string();
  return stem.size() > 1 && classes_of(stem).back() == 'c' ? stem + "i" : word;
}

std::string with_short_suffix(const std::string& word) {  // step 2
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 21> kSuffixes = {
      {{"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"}, {"izer", "ize"},
       {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"}, {"eli", "e"},     {"ousli", "ous"},
       {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},  {"alism", "al"},  {"iveness", "ive"},
       {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},  {"iviti", "ive"}, {"biliti", "ble"},
       {"fulli", "ful"}}};
  if (word.ends_with("alli") && measure(without(word, "alli")) > 0) return with_short_suffix(without(word, "li"));
  if (word.ends_with("logi")) return measure(without(word, "ogi")) > 0 ? without(word, "i") : word;
  return replaced(word, kSuffixes, 0);
}

std::string without_more(const std::string& word) {  // step 3
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSuffixes = {
      {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""}, {"ness", ""}}};
  return replaced(word, kSuffixes, 0);
}

std::string without_suffix(const std::string& word) {  // step 4
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kSuffixes = {{{"al", ""},
                                                                                               {"ance", ""},
                                                                                               {"ence", ""},
                                                                                               {"er", ""},
                                                                                               {"ic", ""},
                                                                                               {"able", ""},
                                                                                               {"ible", ""},
                                                                                               {"ant", ""},
                                                                                               {"ement", ""},
                                                                                               {"ment", ""},
                                                                                               {"ent", ""},
                                                                                               {"ou", ""},
                                                                                               {"ism", ""},
                                                                                               {"ate", ""},
                                                                                               {"iti", ""},
                                                                                               {"ous", ""},
                                                                                               {"ive", ""},
                                                                                               {"ize", ""}}};
  if (!word.ends_with("ion")) return replaced(word, kSuffixes, 1);
  const auto stem = without(word, "ion");
  return measure(stem) > 1 && (stem.ends_with("s") || stem.ends_with("t")) ? stem : word;
}

std::string without_last_e(const std::string& word) {  // step 5a
  if (!word.ends_with("e")) return word;
  const auto stem = without(word, "e");
  const int m = measure(stem);
  return m > 1 || (m == 1 && !ends_in_short_syllable(stem)) ? stem : word;
}

}  // namespace

std::string porter_stem(std::string word) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kIrregular = {
      {{"sky", "sky"},
       {"skies", "sky"},
       {"dying", "die"},
       {"lying", "lie"},
       {"tying", "tie"},
       {"news", "news"},
       {"innings", "inning"},
       {"inning", "inning"},
       {"outings", "outing"},
       {"outing", "outing"},
       {"cannings", "canning"},
       {"canning", "canning"},
       {"howe", "howe"},
       {"proceed", "proceed"},
       {"exceed", "exceed"},
       {"succeed", "succeed"}}};
  for (const auto& [form, stem] : kIrregular)
    if (word == form) return std::string(stem);
  if (word.size() <= 2) return word;
  word = with_i_for_y(without_ed_and_ing(without_plural(word)));
  word = without_last_e(without_suffix(without_more(with_short_suffix(word))));
  return word.ends_with("ll") && measure(without(word, "l")) > 1 ? without(word, "l") : word;  // step 5b
}

}  // namespace tessera::tasks
