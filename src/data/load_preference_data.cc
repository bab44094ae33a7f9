#include <fmt/format.h>

#include "data/cache_key.h"
#include "data/cache_lock.h"
#include "data/mixture.h"
#include "data/ordered_workers.h"
#include "data/piece_reader.h"
#include "data/preference_dataset.h"
#include "data/preference_tokenize.h"
#include "data/row_cache.h"
#include "data/stored_preference.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kPreferenceFormat = 3;    // raise when the same inputs give other rows
constexpr std::size_t kUnpairedTogether = 1000;  // TRL makes rows of so many pairs at a time, chosen ones first

struct TokenisedPiece {
  std::vector<PreferenceRow> rows, rejected;  // rejected: second rows of unpaired pairs
  std::vector<std::string> places;            // of rows
};

/// Drops, counts and writes rows in TRL's order.
class RowsInOrder {
 public:
  /// most_rows 0: all.
  RowsInOrder(const PreferenceTokenizer& tokenizer, std::int64_t most_rows, RowCacheWriter& writer)
      : tokenizer_(tokenizer), most_rows_(most_rows), writer_(writer) {}

  bool enough() const { return most_rows_ > 0 && written_ >= most_rows_; }

  void add(TokenisedPiece piece) {
    for (std::size_t i = 0; i < piece.rows.size(); ++i) {
      write(piece.rows[i], piece.places[i]);
      if (piece.rejected.empty()) continue;
      rejected_.push_back(std::move(piece.rejected[i]));
      if (rejected_.size() == kUnpairedTogether) flush();
    }
  }
  void flush() {
    for (const auto& row : rejected_) write(row, {});
    rejected_.clear();
  }

  std::vector<std::string> notes(const Split& split, std::int64_t max_length) const {
    if (read_ == 0)
      throw DataError(fmt::format("{}: the split '{}' has no rows", split.files.front(), split.name),
                      split.files.front());
    if (written_ == 0)
      throw DataError(fmt::format("{}: no row of the split '{}' fits into {} tokens; raise --max_length",
                                  split.files.front(), split.name, max_length),
                      split.files.front());
    std::vector<std::string> out{fmt::format("split '{}': {} rows of tokens", split.name, written_)};
    if (enough())
      out.push_back(fmt::format("split '{}': read as far as --max_steps needs (--dataset_streaming)", split.name));
    if (dropped_ > 0)
      out.push_back(
          fmt::format("split '{}': {} rows were left out, since --max_length {} leaves nothing to learn of "
                      "them; the first is {}",
                      split.name, dropped_, max_length, first_dropped_));
    if (promptless_ > 0)
      out.push_back(
          fmt::format("split '{}': {} rows have an empty prompt (without a column \"prompt\" it is what both answers "
                      "begin with)",
                      split.name, promptless_));
    return out;
  }

 private:
  void write(const PreferenceRow& row, const std::string& place) {
    if (enough()) return;  // read ahead; how far depends on the number of threads
    ++read_;
    if (!tokenizer_.drops(row)) {
      writer_.add(stored_form(row));
      ++written_;
      promptless_ += row.has_prompt ? 0 : 1;
      return;
    }
    ++dropped_;
    if (first_dropped_.empty()) first_dropped_ = place.empty() ? "a rejected completion" : place;
  }

  const PreferenceTokenizer& tokenizer_;
  std::int64_t most_rows_;
  RowCacheWriter& writer_;
  std::vector<PreferenceRow> rejected_;
  std::int64_t read_ = 0, written_ = 0, dropped_ = 0, promptless_ = 0;
  std::string first_dropped_;
};

std::shared_ptr<const RowCache> build_split(const PreferenceDataOptions& o, const Split& split, std::int64_t most_rows,
                                            const std::shared_ptr<const text::Tokenizer>& text_tokenizer) {
  Fingerprint key;
  key.add(kPreferenceFormat);
  add_split(key, split);
  key.add(o.chat_template);
  for (const std::int64_t value :
       {static_cast<std::int64_t>(o.form), o.max_length, static_cast<std::int64_t>(o.truncation_mode)})
    key.add(value);
  if (most_rows > 0) key.add(fmt::format("most {}", most_rows));
  add_tokenizer(key, *text_tokenizer);
  const auto path = cache_file(o.cache_folder, fmt::format("preference-{}-{}.rows", split.name, key.hex()));
  const CacheLock lock(path);
  if (auto cached = RowCache::open(path)) return cached;
  RowCacheWriter writer(path);
  const PreferenceTokenizer tokenizer(o, text_tokenizer);
  RowsInOrder rows(tokenizer, most_rows, writer);
  PieceReader read(split, "text");
  const auto work = [&](RowPiece piece) {
    TokenisedPiece out;
    for (const auto& source : piece.rows) {
      auto made = tokenizer.tokenize(source);
      out.rows.push_back(std::move(made.front()));
      out.places.push_back(where(source));
      if (made.size() > 1) out.rejected.push_back(std::move(made.back()));
    }
    if (!out.rejected.empty() && out.rejected.size() != out.rows.size())
      throw DataError(
          fmt::format("{}: some rows have chosen and rejected, others a completion and a label; all rows of a "
                      "split must be of one kind",
                      *piece.rows.front().file),
          *piece.rows.front().file);
    return out;
  };
  run_ordered<RowPiece, TokenisedPiece>(
      tokenizing_threads(o.dataset_num_proc), [&] { return rows.enough() ? std::optional<RowPiece>() : read(); }, work,
      [&](TokenisedPiece piece) { rows.add(std::move(piece)); });
  rows.flush();
  writer.finish(rows.notes(split, o.max_length));
  auto out = RowCache::open(path);
  TESSERA_CHECK(out != nullptr, path + " was just written");
  return out;
}

}  // namespace

PreferenceSplits load_preference_data(const PreferenceDataOptions& options,
                                      std::shared_ptr<const text::Tokenizer> tokenizer,
                                      std::vector<std::string>& notes) {
  if (options.max_length < 0) throw ConfigError("--max_length must not be negative", "max_length");
  if (tokenizer->eos_id() < 0)
    throw ConfigError(
        "the tokenizer has no end-of-sequence token, which ends every completion; name one with "
        "--eos_token",
        "eos_token");
  const auto splits = find_splits(options);
  PreferenceSplits out;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].files.empty()) {
      notes.push_back(
          fmt::format("{} has no split '{}'; there will be no evaluation", options.dataset_name, splits[i].name));
      continue;
    }
    const auto rows = build_split(options, splits[i], i == 0 ? options.most_rows : 0, tokenizer);
    notes.insert(notes.end(), rows->notes().begin(), rows->notes().end());
    out.files.insert(out.files.end(), splits[i].files.begin(), splits[i].files.end());
    (i == 0 ? out.train : out.eval) = std::make_shared<const PreferenceDataset>(rows);
  }
  return out;
}

}  // namespace tessera::data
