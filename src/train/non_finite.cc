#include "train/non_finite.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "tensor/offload_store.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // elements: what is made on the way is small

/// One pass, without copies: NaN and infinities are among the extremes.
bool is_finite(const at::Tensor& flat) {
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kPiece) {
    const auto [least, most] = at::aminmax(flat.narrow(0, begin, std::min(kPiece, flat.numel() - begin)));
    if (!std::isfinite(least.item<double>()) || !std::isfinite(most.item<double>())) return false;
  }
  return true;
}

/// The first whose values on some rank are not finite.
std::string first_of(const fsdp::FullyShardedDataParallel& model,
                     const std::function<at::Tensor(const fsdp::ShardView&)>& values) {
  const auto shards = model.shards();
  const auto store = model.offload_store();
  auto mine = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < shards.size() && mine > static_cast<std::int64_t>(i); ++i) {
    const auto t = values(shards[i]);
    if (t.defined() && !is_finite(t.detach())) mine = static_cast<std::int64_t>(i);
    if (t.defined() && store) store->evict(t);
  }
  auto first = std::numeric_limits<std::int64_t>::max();
  int rank = -1;
  const auto all = model.group().all_gather_objects(std::to_string(mine));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (const auto theirs = std::stoll(all[r]); theirs < first) first = theirs, rank = static_cast<int>(r);
  if (rank < 0) return {};
  const auto& found = shards[static_cast<std::size_t>(first)];
  const bool is_nan = rank == model.group().rank() && at::isnan(values(found).detach()).any().item<bool>();
  const auto kind = model.group().broadcast_object(is_nan ? "NaN" : "infinity", rank);
  return fmt::format("{} in '{}'{} (rank {})", kind, found.name,
                     found.unit.empty() ? "" : " of unit '" + found.unit + "'", rank);
}

}  // namespace

std::string first_non_finite_weight(const fsdp::FullyShardedDataParallel& model, Weights which) {
  const bool trained = which == Weights::kTrained;
  const bool on_disk = model.offload_store() != nullptr;
  return first_of(model, [&](const fsdp::ShardView& shard) {
    const bool looks = trained ? shard.trainable : !shard.trainable && !on_disk && !shard.packed;
    return looks && shard.local.is_floating_point() ? shard.local : at::Tensor();
  });
}

std::string first_non_finite_gradient(const fsdp::FullyShardedDataParallel& model) {
  return first_of(model, [](const fsdp::ShardView& shard) { return shard.trainable ? shard.grad : at::Tensor(); });
}

}  // namespace tessera::train
