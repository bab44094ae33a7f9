#pragma once
// The rows of a sequence-to-sequence job.
#include <memory>
#include <string>
#include <vector>

#include "tasks/seq2seq.h"
#include "tasks/text_evaluation.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

struct Seq2SeqData {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  PairSet train, validation, test;
  std::vector<std::string> notes;
};

/// Reads, splits and tokenizes.
Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& options, const std::string& tokenizer_path);

/// Tokens of a label in an evaluation: what the flags say, else so many as the longest has.
std::int64_t most_label_tokens(const Seq2SeqOptions& options, const PairSet& set);

}  // namespace tessera::tasks
