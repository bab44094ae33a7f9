#include "fsdp/params/parameter_store.h"

#include "tensor/mapped_zeros.h"

namespace tessera::fsdp {

void ParameterStore::note_version(std::size_t segment) {
  versions_.resize(shards_.size());
  versions_[segment] = static_cast<std::uint32_t>(shards_[segment]._version());
}

bool ParameterStore::written(std::size_t segment) const {
  return static_cast<std::uint32_t>(shards_[segment]._version()) != versions_[segment];
}

std::int64_t ParameterStore::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& shard : shards_) bytes += static_cast<std::int64_t>(shard.nbytes());
  return bytes;
}

at::Tensor allocate_shard(const Segment& segment, tensor::OffloadStore* offload, at::Device device) {
  if (offload) return offload->allocate(segment.slice_numel, segment.shard_dtype());
  return tensor::lasting_zeros(segment.slice_numel, segment.shard_dtype(), device);
}

}  // namespace tessera::fsdp
