#pragma once
// Rows of text -> token ids -> padded tensors. B batch, S source length, T target length.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/row_mark.h"
#include "data/text_pair.h"
#include "text/tokenizer.h"

namespace tessera::data {

struct TokenizedPairs {
  struct Row {
    std::vector<std::int32_t> source, target;
  };
  std::vector<Row> rows;
  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  RowMark mark(std::int64_t i) const;
  std::int64_t pad_id = 0;
  std::int64_t cut_sources = 0, cut_targets = 0;  // that had more tokens than may be
};

struct TokenizeOptions {
  std::int64_t max_source_length = 64, max_target_length = 8;  // tokens, with </s>; longer rows are cut
};

/// DataError when the tokenizer has no padding token.
TokenizedPairs tokenize(const std::vector<TextPair>& pairs, const text::Tokenizer& tokenizer,
                        const TokenizeOptions& options);

/// The text's tokens, or those of two texts, of which there may be so many; cut: one more where there were more.
text::Encoding encode_and_count(const text::Tokenizer& tokenizer, const std::string& text,
                                const std::optional<std::string>& second, const text::EncodeOptions& limit,
                                std::int64_t& cut);

struct CutTexts {
  std::int64_t count;
  const char* what;  // "text"
  const char* flag;  // that cuts them
  std::int64_t length;
};

/// Says so if there are any.
void note_cut(const CutTexts& cut, std::vector<std::string>& notes);

enum class Padding {
  kLongest,    // to the longest row of the batch
  kMaxLength,  // to the lengths given, whatever the rows are
};

struct CollateOptions {
  Padding padding = Padding::kLongest;
  std::int64_t max_source_length = 64, max_target_length = 8;  // for kMaxLength
};

struct PairBatch {
  at::Tensor input_ids;          // [B, S] int64
  at::Tensor attention_mask;     // [B, S] int64, 1 on tokens
  at::Tensor labels;             // [B, T] int64, -100 on padding
  at::Tensor row_ids;            // [B] int64: `rows`
  std::int64_t label_count = 0;  // labels != -100
};

/// Tokens of the longest source and of the longest target. With kMaxLength targets have max_target_length: models
/// compute with their padding, and not with that of sources.
struct PairLengths {
  std::int64_t source = 0, target = 0;
};
PairLengths longest_rows(const TokenizedPairs& pairs, const CollateOptions& options);

/// `rows` as EpochSampler::next() gives them. Of no rows: one row of padding, number -1, without labels, with which a
/// rank takes part in a batch that has nothing for it.
PairBatch collate(const TokenizedPairs& pairs, const std::vector<std::int64_t>& rows, const CollateOptions& options);

}  // namespace tessera::data
