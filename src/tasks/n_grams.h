#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tessera::tasks {

using NGramCounts = std::map<std::vector<std::string>, int>;

/// How often each run of `n` words is there.
NGramCounts n_grams(const std::vector<std::string>& words, std::size_t n);

/// What both have, each as often as the one that has it less often.
int count_matches(const NGramCounts& a, const NGramCounts& b);

}  // namespace tessera::tasks
