#pragma once
#include <string>
#include <vector>

namespace tessera::tasks {

/// F-measures: of words, of pairs of words, of the longest common subsequence of words, and of the union of those of
/// each line with the other text's lines; each in [0, 1].
struct Rouge {
  double rouge1 = 0, rouge2 = 0, rougeL = 0, rougeLsum = 0;
};

/// The means over all rows, of English words by their stems, as rouge_score's RougeScorer(use_stemmer=True) gives each
/// row's (Lin 2004). evaluate's "rouge" gives medians of 1000 means of rows drawn at random in place of the means.
Rouge rouge(const std::vector<std::string>& predictions, const std::vector<std::string>& references);

}  // namespace tessera::tasks
