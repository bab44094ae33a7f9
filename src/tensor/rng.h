#pragma once
// Counter-based random numbers: every number is a function of (key, index), so that neither the order of draws, nor the
// number of threads, nor the vector width of the machine changes a bit, and a mask can be drawn again instead of being
// stored.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tensor/random_bits.h"

namespace tessera::tensor {

/// The stream of this thread (ranks of a test are threads, ranks of a run are processes): `position` counts draws.
struct RandomState {
  std::uint64_t seed = 0, position = 0;
  /// [rows] int64, contiguous: what the rows of the tensors that are worked on now are, in the job and not in this
  /// rank's batch (see PassScope). A draw for so many rows is keyed by them. Undefined: by the rows' numbers.
  at::Tensor rows = {};
  /// Of passes that take turns (see PartScope), each with a stream of its own: where each has stopped.
  std::vector<RandomState> parts = {};
};
RandomState& random_state() noexcept;

/// The beginning of a stream.
RandomState stream_of(std::uint64_t seed, std::uint64_t stream = 0) noexcept;

/// Starts this thread's stream again. Ranks that draw without PassScope take different streams.
void manual_seed(std::uint64_t seed, std::uint64_t stream = 0) noexcept;

/// While it lives, this thread draws from `first_draw` on, for rows with these keys: what is drawn for a row then
/// depends neither on the rank nor on the batch that it is in. Ranks must have the same seed and make the same draws.
/// Undefined keys change nothing.
class PassScope {
 public:
  PassScope(const at::Tensor& rows, std::uint64_t first_draw);
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  bool active_;
  RandomState before_;
};

/// While it lives, this thread draws for that one of random_state()'s parts, from where its last turn ended.
class PartScope {
 public:
  explicit PartScope(std::size_t part) : part_(part) { take_turns(); }
  ~PartScope() { take_turns(); }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  void take_turns() noexcept;
  std::size_t part_;
};

/// While it lives, this thread's draws are for these rows (if any were keyed before); the count of draws goes on.
class RowScope {
 public:
  explicit RowScope(at::Tensor rows);
  ~RowScope();
  RowScope(const RowScope&) = delete;
  RowScope& operator=(const RowScope&) = delete;

 private:
  at::Tensor before_;
};

/// The key of one row of a draw.
RandomKey row_key(RandomKey draw, std::int64_t row) noexcept;

/// The key of the next draw of this thread's stream.
RandomKey next_key() noexcept;

/// A key that depends only on the seed and a name: the same on every rank and for every world size.
RandomKey named_key(std::uint64_t seed, std::string_view name) noexcept;

/// Fills a contiguous CPU tensor of any floating dtype; element i depends on (key, i) only.
void fill_uniform(at::Tensor out, RandomKey key, double low, double high);
void fill_normal(at::Tensor out, RandomKey key, double mean, double std);

}  // namespace tessera::tensor
