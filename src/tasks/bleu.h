#pragma once
#include <string>
#include <vector>

namespace tessera::tasks {

/// BLEU of all rows together (Papineni et al. 2002), in percent, as sacrebleu's corpus_bleu gives it by default: runs
/// of one to four words, cut by the rules of WMT ("13a"), in the case they have, with exponential smoothing.
double bleu(const std::vector<std::string>& predictions, const std::vector<std::string>& references);

}  // namespace tessera::tasks
