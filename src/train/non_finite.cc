#include "train/non_finite.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tessera/fsdp/fully_shard.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // elements: what is made on the way is small

bool is_finite(const at::Tensor& flat) {
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kPiece)
    if (!at::isfinite(flat.narrow(0, begin, std::min(kPiece, flat.numel() - begin))).all().item<bool>()) return false;
  return true;
}

std::string first_of(const fsdp::FullyShardedDataParallel& model, at::Tensor fsdp::ShardView::* values) {
  const auto shards = model.shards();
  auto mine = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < shards.size() && mine > static_cast<std::int64_t>(i); ++i) {
    const auto& t = shards[i].*values;
    if (shards[i].trainable && t.defined() && !is_finite(t.detach())) mine = static_cast<std::int64_t>(i);
  }
  auto first = std::numeric_limits<std::int64_t>::max();
  int rank = -1;
  const auto all = model.group().all_gather_objects(std::to_string(mine));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (const auto theirs = std::stoll(all[r]); theirs < first) first = theirs, rank = static_cast<int>(r);
  if (rank < 0) return {};
  const auto& found = shards[static_cast<std::size_t>(first)];
  const bool is_nan = rank == model.group().rank() && at::isnan((found.*values).detach()).any().item<bool>();
  const auto kind = model.group().broadcast_object(is_nan ? "NaN" : "infinity", rank);
  return fmt::format("{} in '{}' (rank {})", kind, found.name, rank);
}

}  // namespace

std::string first_non_finite_weight(const fsdp::FullyShardedDataParallel& model) {
  return first_of(model, &fsdp::ShardView::local);
}

std::string first_non_finite_gradient(const fsdp::FullyShardedDataParallel& model) {
  return first_of(model, &fsdp::ShardView::grad);
}

}  // namespace tessera::train
