#include "fsdp/params/split_master.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tensor/mapped_zeros.h"
#include "tensor/storage.h"
#include "tessera/tensor/allocator.h"

namespace tessera::fsdp {
namespace {

constexpr std::int64_t kGrain = 1 << 16;  // elements of a thread

constexpr auto kWithoutMemory =
    "these parameters are kept in halves for an optimizer that knows how (keep_state_in(offload_store())); read them "
    "through shards() or visit_full()";

}  // namespace

SplitMaster::SplitMaster(at::Tensor values, at::Tensor high)
    : leaf_(tensor::make_detached(values.sizes(), at::kFloat, kWithoutMemory)), halves_{std::move(high), {}} {
  give_memory(std::move(values));
}

void SplitMaster::give_memory(at::Tensor values) {
  values_ = std::move(values);
  tensor::attach(leaf_, values_.mutable_data_ptr(), values_);
}

void SplitMaster::divide() {
  settle();
  if (!values_.defined()) return;
  if (!accepted_) {
    halves_.high.copy_(leaf_.detach());
    return;
  }
  if (!halves_.low.defined()) halves_.low = tensor::mapped_zeros(leaf_.numel(), at::kShort);
  const auto* values = values_.const_data_ptr<float>();
  at::parallel_for(0, leaf_.numel(), kGrain,
                   [&](std::int64_t begin, std::int64_t end) { halves_.write(begin, end - begin, values + begin); });
  take_memory_away();
}

void SplitMaster::join() {
  if (values_.defined()) return;
  auto memory = [&] {
    const tensor::FarEndScope scope;  // where gradients are between backward and the optimizer's step
    return at::empty({leaf_.numel()}, leaf_.options().requires_grad(false));
  }();
  auto* values = memory.mutable_data_ptr<float>();
  at::parallel_for(0, leaf_.numel(), kGrain,
                   [&](std::int64_t begin, std::int64_t end) { halves_.read(begin, end - begin, values + begin); });
  give_memory(std::move(memory));
  joined_version_ = static_cast<std::uint32_t>(leaf_._version());
}

/// What halves say still holds.
bool SplitMaster::read_only() const {
  return halves_.low.defined() && static_cast<std::uint32_t>(leaf_._version()) == joined_version_;
}

void SplitMaster::settle() {
  if (values_.defined() && read_only()) take_memory_away();
}

void SplitMaster::take_memory_away() {
  tensor::detach(leaf_, kWithoutMemory);
  values_ = at::Tensor();
}

std::int64_t SplitMaster::bytes() const {
  return (values_.defined() ? static_cast<std::int64_t>(leaf_.nbytes()) : 0) +
         (halves_.low.defined() ? static_cast<std::int64_t>(halves_.low.nbytes()) : 0);
}

at::Tensor SplitMasters::allocate(std::int64_t numel, at::ScalarType dtype) {
  return tensor::mapped_zeros(numel, dtype);
}

void SplitMasters::accept_halves() {
  for (const auto& m : masters_) m->accept_halves();
}

const tensor::SplitFloats* SplitMasters::halves_of(const at::Tensor& parameter) const {
  const auto found =
      std::find_if(masters_.begin(), masters_.end(), [&](const auto& m) { return m->leaf().is_same(parameter); });
  return found == masters_.end() ? nullptr : (*found)->halves();
}

}  // namespace tessera::fsdp
