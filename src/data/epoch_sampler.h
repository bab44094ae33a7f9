#pragma once
// Which rows make the next batch of this rank. A global batch is per_device_batch * world_size rows of the epoch's
// order, rank r takes its contiguous slice: world sizes with the same global batch see the same rows in the same step.
#include <cstdint>
#include <vector>

#include "data/shuffle.h"

namespace tessera::data {

/// What happens to the rows that do not fill the last global batch of an epoch.
enum class LastBatch {
  kKeep,  // a smaller batch: every row comes exactly once, and the last ranks may have few rows in it, or none
  kDrop,  // they are left out
};

struct SamplerOptions {
  std::int64_t rows = 0;
  std::int64_t per_device_batch = 8;
  int rank = 0, world_size = 1;
  std::uint64_t seed = 42;
  bool shuffle = true;
  LastBatch last_batch = LastBatch::kKeep;
};

struct SamplerPosition {
  std::int64_t epoch = 0, batch = 0;  // the next batch to come
};

class EpochSampler {
 public:
  /// ConfigError when there are no rows, or (kDrop) fewer than one global batch.
  explicit EpochSampler(const SamplerOptions& options);

  /// The same on every rank.
  std::int64_t batches_per_epoch() const { return batches_; }

  /// Rows of a batch, of all ranks.
  std::int64_t rows_of_all(std::int64_t batch) const;

  /// At most per_device_batch row numbers. After the last batch of an epoch position() is at {epoch + 1, 0}.
  std::vector<std::int64_t> next();

  SamplerPosition position() const { return position_; }
  /// Continues there, as if the batches before had been taken.
  void seek(SamplerPosition position);

 private:
  void start_epoch();

  SamplerOptions options_;
  std::int64_t batches_ = 0;
  SamplerPosition position_;
  RowOrder order_;
};

}  // namespace tessera::data
