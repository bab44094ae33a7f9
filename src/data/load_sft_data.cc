#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "data/cache_key.h"
#include "data/cache_lock.h"
#include "data/fingerprint.h"
#include "data/mixture.h"
#include "data/ordered_workers.h"
#include "data/pack.h"
#include "data/piece_reader.h"
#include "data/row_cache.h"
#include "data/sft_dataset.h"
#include "data/sft_tokenize.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kFormatVersion = 4;  // raise when the same inputs give other rows

class SplitBuilder {
 public:
  /// most_rows 0: all.
  SplitBuilder(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer, bool packing,
               std::int64_t most_rows)
      : options_(options), tokenizer_(std::move(tokenizer)), packing_(packing), most_rows_(most_rows) {}

  std::shared_ptr<const RowCache> build(const Split& split) {
    const std::string path = cache_path(split);
    const CacheLock lock(path);
    if (auto cached = RowCache::open(path)) return cached;
    RowCacheWriter writer(path);
    const auto notes = write_rows(split, writer);
    writer.finish(notes);
    auto out = RowCache::open(path);
    TESSERA_CHECK(out != nullptr, path + " was just written");
    return out;
  }

 private:
  struct Result {
    std::vector<SftRow> rows;
    std::int64_t read = 0, cut = 0, dropped = 0;
    std::string first_cut, first_dropped;
  };

  std::string cache_path(const Split& split) const {
    Fingerprint key;
    key.add(kFormatVersion);
    add_split(key, split);
    key.add(options_.dataset_text_field);
    key.add(options_.chat_template);
    for (const std::int64_t value :
         {std::int64_t{options_.add_special_tokens}, std::int64_t{options_.append_concat_token},
          std::int64_t{options_.standardize_roles}, std::int64_t{options_.completion_only_loss.has_value()},
          std::int64_t{options_.completion_only_loss.value_or(false)}, std::int64_t{options_.assistant_only_loss},
          options_.max_length, std::int64_t{packing_}, static_cast<std::int64_t>(options_.packing_strategy)})
      key.add(value);
    if (most_rows_ > 0) key.add(fmt::format("most {}", most_rows_));
    add_tokenizer(key, *tokenizer_);
    return cache_file(options_.cache_folder, fmt::format("sft-{}-{}.rows", split.name, key.hex()));
  }

  std::vector<std::string> write_rows(const Split& split, RowCacheWriter& writer) {
    Result total;
    std::int64_t written = 0;
    std::unique_ptr<const SftTokenizer> row_tokenizer;
    RowKind kind{};
    std::string role;
    PieceReader next_piece(split, options_.dataset_text_field);
    const auto read = [&]() -> std::optional<RowPiece> {
      if (enough(written)) return std::nullopt;
      auto piece = next_piece();
      if (piece && row_tokenizer == nullptr) {
        const auto& row = piece->rows.front();
        const auto object = parse_row(row);
        kind = kind_of_row(*object, options_.dataset_text_field, where(row));
        if (kind == RowKind::kMessages && !options_.standardize_roles) role = unusual_role(read_messages(*object, row));
        row_tokenizer = std::make_unique<const SftTokenizer>(options_, tokenizer_, kind);
      }
      return piece;
    };
    const auto work = [&](RowPiece piece) { return tokenize(piece, *row_tokenizer, kind); };
    const auto write = [&](const std::vector<SftRow>& rows) {
      for (const auto& row : rows) {
        if (enough(written)) break;
        writer.add(row);
        ++written;
      }
    };
    std::vector<SftRow> unpacked;
    const auto pack_all = [&] {
      write(pack(std::exchange(unpacked, {}), options_.max_length, options_.packing_strategy));
    };
    const auto take = [&](Result result) {
      if (enough(written)) return;  // read ahead; how far depends on the number of threads
      total.read += result.read;
      total.cut += result.cut;
      total.dropped += result.dropped;
      if (total.first_cut.empty()) total.first_cut = result.first_cut;
      if (total.first_dropped.empty()) total.first_dropped = result.first_dropped;
      if (!packing_) return write(result.rows);
      for (auto& row : result.rows) {
        unpacked.push_back(std::move(row));
        if (std::ssize(unpacked) == kPackedTogether) pack_all();
      }
    };
    run_ordered<RowPiece, Result>(tokenizing_threads(options_.dataset_num_proc), read, work, take);
    if (!unpacked.empty()) pack_all();
    auto notes = notes_about(split, total, written);
    if (!role.empty())
      notes.push_back(
          fmt::format("split '{}': roles such as '{}' keep their names, as in TRL; --standardize_roles true "
                      "calls them user and assistant",
                      split.name, role));
    return notes;
  }

  bool enough(std::int64_t written) const { return most_rows_ > 0 && written >= most_rows_; }

  Result tokenize(const RowPiece& piece, const SftTokenizer& row_tokenizer, RowKind kind) const {
    Result out;
    for (const auto& source : piece.rows) {
      SftRow row = tokenize_row(source, row_tokenizer, kind);
      ++out.read;
      const auto size = static_cast<std::int64_t>(row.input_ids.size());
      const bool whole = options_.max_length == 0 || size <= options_.max_length;
      const bool keeps_all = packing_ && options_.packing_strategy != PackingStrategy::kBfd;
      if (!whole && !keeps_all) {
        ++out.cut;
        if (out.first_cut.empty()) out.first_cut = fmt::format("{} with {} tokens", where(source), size);
      }
      if (!whole && !packing_) cut(row);
      if (!packing_ && std::all_of(row.labels.begin(), row.labels.end(), [](auto label) { return label == -100; })) {
        ++out.dropped;
        if (out.first_dropped.empty()) out.first_dropped = where(source);
        continue;
      }
      out.rows.push_back(std::move(row));
    }
    return out;
  }

  // A row of another kind than the first one lacks the keys; say which kind was expected.
  SftRow tokenize_row(const SourceRow& source, const SftTokenizer& row_tokenizer, RowKind kind) const {
    try {
      return row_tokenizer.tokenize(source);
    } catch (const DataError& e) {
      const std::string what = e.what();
      if (what.find("is missing") == std::string::npos || what.find('[') != std::string::npos) throw;
      throw DataError(
          fmt::format("{} (the first row has {}; all rows of a split must be of one kind)", what, name_of(kind)),
          e.file, e.line);
    }
  }

  void cut(SftRow& row) const {
    row.input_ids.resize(static_cast<std::size_t>(options_.max_length));
    row.labels.resize(static_cast<std::size_t>(options_.max_length));
    row.document_lengths = {static_cast<std::int32_t>(options_.max_length)};
  }

  std::vector<std::string> notes_about(const Split& split, const Result& total, std::int64_t written) const {
    if (total.read == 0)
      throw DataError(fmt::format("{}: the split '{}' has no rows", split.files.front(), split.name),
                      split.files.front());
    if (written == 0)
      throw DataError(
          fmt::format("{}: no row of the split '{}' has a token to learn{}", split.files.front(), split.name,
                      options_.max_length > 0
                          ? fmt::format(" within the first {} tokens; raise --max_length", options_.max_length)
                          : "; look with 'tessera render' at what the rows become"),
          split.files.front());
    std::vector<std::string> notes{fmt::format("split '{}': {} rows of {} file(s) became {} rows of tokens", split.name,
                                               total.read, split.files.size(), written)};
    if (enough(written))
      notes.push_back(fmt::format("split '{}': read as far as --max_steps needs (--dataset_streaming)", split.name));
    if (total.cut > 0)
      notes.push_back(fmt::format(
          "split '{}': {} longer than --max_length {}; the first is {}", split.name,
          total.cut == 1 ? "1 row was cut, which is" : fmt::format("{} rows were cut, which are", total.cut),
          options_.max_length, total.first_cut));
    if (total.dropped > 0)
      notes.push_back(
          fmt::format("split '{}': {} rows were left out, since nothing to learn is left of them; the first "
                      "is {}",
                      split.name, total.dropped, total.first_dropped));
    return notes;
  }

  const SftDataOptions& options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  bool packing_;
  std::int64_t most_rows_;
};

}  // namespace

SftSplits load_sft_data(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer,
                        std::vector<std::string>& notes) {
  if (options.max_length < 0) throw ConfigError("--max_length must not be negative", "max_length");
  const bool eval_packing = options.eval_packing.value_or(options.packing);
  if (options.max_length == 0 && (options.packing || eval_packing))
    throw ConfigError("packing needs --max_length, the length of a packed row", "max_length");
  const auto splits = find_splits(options);
  SftSplits out;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (splits[i].files.empty()) {
      notes.push_back(
          fmt::format("{} has no split '{}'; there will be no evaluation", options.dataset_name, splits[i].name));
      continue;
    }
    const bool packing = i == 0 ? options.packing : eval_packing;
    const auto rows = SplitBuilder(options, tokenizer, packing, i == 0 ? options.most_rows : 0).build(splits[i]);
    notes.insert(notes.end(), rows->notes().begin(), rows->notes().end());
    out.files.insert(out.files.end(), splits[i].files.begin(), splits[i].files.end());
    (i == 0 ? out.train : out.eval) =
        std::make_shared<const SftDataset>(rows, packing && options.packing_strategy != PackingStrategy::kWrapped);
  }
  return out;
}

}  // namespace tessera::data
