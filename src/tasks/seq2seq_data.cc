#include "tasks/seq2seq_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

data::SamplerOptions training_sampler(const Seq2SeqData& data, const Seq2SeqOptions& options, int rank,
                                      int world_size) {
  return {.rows = static_cast<std::int64_t>(data.train.rows.size()),
          .per_device_batch = options.per_device_train_batch_size,
          .rank = rank,
          .world_size = world_size,
          .seed = static_cast<std::uint64_t>(options.seed),
          .shuffle = true,
          .last_batch = data::LastBatch::kWrap};
}

data::EpochSampler all_ranks(data::SamplerOptions options) {
  options.per_device_batch *= options.world_size;
  options.rank = 0;
  options.world_size = 1;
  return data::EpochSampler(options);
}

void require_ids_below(const data::TokenizedPairs& pairs, std::int64_t vocab_size, const std::string& tokenizer) {
  for (const auto& row : pairs.rows) {
    for (const auto* ids : {&row.source, &row.target}) {
      const auto largest = std::max_element(ids->begin(), ids->end());
      if (largest != ids->end() && *largest >= vocab_size) {
        throw DataError(
            fmt::format(
                "the tokenizer '{}' gives id {}, but the model's embedding has {} rows: they do not belong together",
                tokenizer, *largest, vocab_size),
            tokenizer);
      }
    }
  }
}

std::int64_t longest_target(const data::TokenizedPairs& pairs) {
  std::size_t longest = 1;
  for (const auto& row : pairs.rows) longest = std::max(longest, row.target.size());
  return static_cast<std::int64_t>(longest);
}

}  // namespace

Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& options, const std::string& tokenizer_path,
                              std::int64_t vocab_size) {
  Seq2SeqData d;
  auto splits = data::read_splits(
      options.dataset_path, options.columns,
      {.validation_fraction = options.validation_split, .seed = static_cast<std::uint64_t>(options.seed)});
  d.notes = splits.notes;
  d.train_rows = std::move(splits.train);
  d.validation_rows = std::move(splits.validation);
  if (options.max_train_samples > 0 && options.max_train_samples < static_cast<std::int64_t>(d.train_rows.size())) {
    d.train_rows.resize(static_cast<std::size_t>(options.max_train_samples));
  }
  d.tokenizer = text::open_tokenizer(tokenizer_path);
  const data::TokenizeOptions limits{.max_source_length = options.max_length,
                                     .max_target_length = options.max_target_length.value_or(512)};
  d.train = data::tokenize(d.train_rows, *d.tokenizer, limits);
  d.validation = data::tokenize(d.validation_rows, *d.tokenizer, limits);
  require_ids_below(d.train, vocab_size, tokenizer_path);
  require_ids_below(d.validation, vocab_size, tokenizer_path);
  d.collate = {.padding = options.pad_to_max_length ? data::Padding::kMaxLength : data::Padding::kLongest,
               .max_source_length = options.max_length,
               .max_target_length =
                   options.max_target_length.value_or(std::max(longest_target(d.train), longest_target(d.validation)))};
  return d;
}

Seq2SeqTrainable::Seq2SeqTrainable(models::Model& model, const Seq2SeqData& data, const Seq2SeqOptions& options,
                                   int rank, int world_size)
    : model_(model),
      data_(data),
      mine_(training_sampler(data, options, rank, world_size)),
      all_(all_ranks(training_sampler(data, options, rank, world_size))) {}

double Seq2SeqTrainable::loss_tokens(std::int64_t epoch, std::int64_t batch) {
  all_.seek({epoch, batch});
  std::size_t tokens = 0;
  for (const auto row : all_.next()) tokens += data_.train.rows[static_cast<std::size_t>(row)].target.size();
  return static_cast<double>(tokens);
}

at::Tensor Seq2SeqTrainable::loss(std::int64_t epoch, std::int64_t batch, double normalizer) {
  mine_.seek({epoch, batch});
  const data::PairBatch b = data::collate(data_.train, mine_.next(), data_.collate);
  models::ModelInput in;
  in.input_ids = b.input_ids;
  in.attention_mask = b.attention_mask;
  in.labels = b.labels;
  in.loss_normalizer = normalizer;
  in.want_logits = false;
  return model_(std::move(in)).loss;
}

}  // namespace tessera::tasks
