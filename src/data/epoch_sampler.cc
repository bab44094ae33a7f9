#include "data/epoch_sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {

EpochSampler::EpochSampler(const SamplerOptions& options) : options_(options) {
  TESSERA_CHECK(
      options.per_device_batch > 0 && options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size,
      "batch size and rank must make sense");
  if (options.rows <= 0) throw ConfigError("the data set has no rows");
  const auto global = options.per_device_batch * options.world_size;
  batches_ = options.last_batch == LastBatch::kDrop ? options.rows / global : (options.rows + global - 1) / global;
  if (batches_ == 0)
    throw ConfigError(
        fmt::format("{} rows do not fill one batch of {} ({} per process, {} processes); use a smaller batch",
                    options.rows, global, options.per_device_batch, options.world_size),
        "per_device_train_batch_size");
  start_epoch();
}

void EpochSampler::start_epoch() {
  order_ = options_.shuffle
               ? RowOrder::random(options_.rows, options_.seed, static_cast<std::uint64_t>(position_.epoch))
               : RowOrder::in_sequence(options_.rows);
}

std::int64_t EpochSampler::rows_of_all(std::int64_t batch) const {
  const auto global = options_.per_device_batch * options_.world_size;
  return std::min(global, options_.rows - batch * global);
}

std::vector<std::int64_t> EpochSampler::next() {
  const auto size = options_.per_device_batch;
  const auto first = (position_.batch * options_.world_size + options_.rank) * size;
  std::vector<std::int64_t> out;
  for (auto i = first; i < std::min(first + size, options_.rows); ++i) out.push_back(order_[i]);
  if (++position_.batch == batches_) {
    position_ = {position_.epoch + 1, 0};
    start_epoch();
  }
  return out;
}

void EpochSampler::seek(SamplerPosition position) {
  TESSERA_CHECK(position.epoch >= 0 && position.batch >= 0 && position.batch < batches_,
                "no such position in the epoch");
  const bool same_epoch = position.epoch == position_.epoch;  // then the order stands
  position_ = position;
  if (!same_epoch) start_epoch();
}

}  // namespace tessera::data
