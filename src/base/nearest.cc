#include "base/nearest.h"

#include <algorithm>
#include <cstdlib>

namespace tessera {
namespace {

char fold(char c) {
  return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string folded(std::string_view name) {
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(), fold);
  return out;
}

bool begins_with(std::string_view name, std::string_view begin) {
  return name.size() >= begin.size() &&
         std::equal(begin.begin(), begin.end(), name.begin(), [](char a, char b) { return fold(a) == fold(b); });
}

/// Whether the words of `part`, between underscores, stand in `whole` in the same order.
bool has_words_of(std::string_view whole, std::string_view part) {
  while (!part.empty()) {
    const auto word = part.substr(0, part.find_first_of("_-"));
    const auto at = std::min(whole.find_first_of("_-"), whole.size());
    const bool same = word.size() == at && begins_with(whole, word);
    if (at == whole.size() && (!same || word.size() < part.size())) return false;
    if (same) part.remove_prefix(std::min(word.size() + 1, part.size()));
    whole.remove_prefix(std::min(at + 1, whole.size()));
  }
  return true;
}

bool is_variant(std::string_view name, std::string_view known) {
  constexpr std::size_t kShortest = 6;  // with the dashes of a flag
  const auto shorter = std::min(name.size(), known.size()), longer = std::max(name.size(), known.size());
  if (shorter < kShortest) return false;
  if (begins_with(name, known) || begins_with(known, name)) return 2 * shorter >= longer;
  return has_words_of(name, known) || has_words_of(known, name);
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b, int limit) {
  // Optimal string alignment: three rows of the dynamic programme are alive at a time.
  const std::string from = folded(a), to = folded(b);
  const std::size_t width = to.size() + 1;
  std::vector<int> before(width), above(width), row(width);
  for (std::size_t j = 0; j < width; ++j) row[j] = static_cast<int>(j);
  int above_least = 0;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = static_cast<int>(i);
    int least = row[0];
    for (std::size_t j = 1; j < width; ++j) {
      row[j] = std::min(std::min(above[j], row[j - 1]) + 1, above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1));
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
      least = std::min(least, row[j]);
    }
    if (std::min(least, above_least) >= limit) return limit;  // later rows come from these two
    above_least = least;
  }
  return std::min(row[to.size()], limit);
}

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t kLongestName = 128;  // longer input is no typing error
  if (name.empty() || name.size() > kLongestName) return {};
  const int farthest = std::max(1, static_cast<int>(name.size()) / 3);
  std::string best, variant;
  int best_distance = farthest + 1;
  for (const std::string& candidate : known) {
    const int longer = std::abs(static_cast<int>(name.size()) - static_cast<int>(candidate.size()));
    const int distance = longer < best_distance ? edit_distance(name, candidate, best_distance) : longer;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
    if (variant.empty() && is_variant(name, candidate)) variant = candidate;
  }
  return best_distance > 1 && !variant.empty() ? variant : best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string best = nearest(name, known);
  return best.empty() ? "" : " (did you mean '" + best + "'?)";
}

}  // namespace tessera
