#pragma once
// Data files -> tokenised rows for supervised fine-tuning, as TRL 1.16 prepares and collates them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/row_mark.h"
#include "data/sft_options.h"
#include "text/tokenizer.h"

namespace tessera::data {

class RowCache;

struct SftRow {
  std::vector<std::int32_t> input_ids;
  std::vector<std::int32_t> labels;            // as long as input_ids, not shifted; -100: no loss
  std::vector<std::int32_t> document_lengths;  // they sum to the row's length; one document unless packed
};

/// The rows lie in a file on disk that is mapped: a data set may be larger than memory. Thread-safe.
class SftDataset {
 public:
  SftDataset(std::shared_ptr<const RowCache> rows, bool separate_documents);

  std::int64_t size() const;
  SftRow row(std::int64_t i) const;
  RowMark mark(std::int64_t i) const;
  std::int64_t length(std::int64_t i) const;  // tokens of one row
  std::int64_t total_tokens() const;
  /// Losses that count: labels != -100 after the shift, never from one document into the next.
  std::int64_t label_count(std::int64_t i) const;
  /// Packed without attention across documents.
  bool separate_documents() const { return separate_documents_; }

 private:
  std::shared_ptr<const RowCache> rows_;
  bool separate_documents_;
};

struct SftSplits {
  std::shared_ptr<const SftDataset> train, eval;  // eval is null where there is no such split
  std::vector<std::string> files;                 // that were read
};

/// Reads, tokenises (dataset_num_proc threads, the same rows whatever their number), packs, and keeps the result in a
/// file of the cache folder, under a name made of the data files' names, sizes and times, of the options and of the
/// tokenizer: the next run maps it. Ranks of one machine may call this at the same time: one does the work.
/// `notes`: what was used, cut and dropped; for the log. DataError names file, row and key; ConfigError the flag.
SftSplits load_sft_data(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer,
                        std::vector<std::string>& notes);

struct SftBatch {
  at::Tensor input_ids;       // [B, S] int64
  at::Tensor labels;          // [B, S] int64, -100 where no loss is; not shifted
  at::Tensor attention_mask;  // [B, S] int64, 1 on tokens; undefined without padding
  at::Tensor position_ids;    // [B, S] int64; without padding they restart at each document
  at::Tensor row_ids;         // int64, the dataset's rows that these are: [B], or [B, S] without padding
  std::int64_t label_count = 0;
};

/// `rows` as EpochSampler::next() gives them. Padded: B is the number of rows. Without padding: B is 1, the rows stand
/// one behind the other. Of no rows: one row of padding, number -1, in either case, without labels and invisible, with
/// which a rank takes part in a batch that has nothing for it.
SftBatch collate_sft(const SftDataset& dataset, const std::vector<std::int64_t>& rows,
                     const SftCollateOptions& options);

}  // namespace tessera::data
