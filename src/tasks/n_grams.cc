#include "tasks/n_grams.h"

#include <algorithm>

namespace tessera::tasks {

NGramCounts n_grams(const std::vector<std::string>& words, std::size_t n) {
  NGramCounts counts;
  for (auto begin = words.begin(); words.end() - begin >= std::ptrdiff_t(n); ++begin)
    ++counts[{begin, begin + std::ptrdiff_t(n)}];
  return counts;
}

int count_matches(const NGramCounts& a, const NGramCounts& b) {
  int sum = 0;
  for (const auto& [words, count] : a)
    if (const auto found = b.find(words); found != b.end()) sum += std::min(count, found->second);
  return sum;
}

}  // namespace tessera::tasks
