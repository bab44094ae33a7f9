#include "fsdp/params/device_copy.h"

#include <ATen/ops/empty.h>

namespace tessera::fsdp {

DeviceCopy::DeviceCopy(const std::vector<UnitParameter>& parameters, const ParameterStore& store, at::Device device,
                       GatherMeter& meter)
    : parameters_(parameters),
      store_(store),
      device_(device),
      meter_(meter),
      segments_(store.segments()),
      mapped_(parameters.size()) {}

void DeviceCopy::bring(Copy& copy, const at::Tensor& host, std::uint32_t version) {
  if (copy.tensor.defined() && copy.version == version) return;
  if (!copy.tensor.defined()) {
    copy.tensor = at::empty(host.sizes(), host.options().device(device_));
    meter_.add(static_cast<std::int64_t>(copy.tensor.nbytes()));
  }
  // Pinned memory is the shared region, which nobody writes before the end of backward waits for the device. All else
  // may be written or freed when this returns.
  copy.tensor.copy_(host, /*non_blocking=*/device_.is_cuda() && host.is_pinned());
  copy.version = version;
}

void DeviceCopy::update() {
  for (std::size_t s = 0; s < segments_.size(); ++s)
    bring(segments_[s], store_.whole(s), static_cast<std::uint32_t>(store_.shard(s)._version()));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].spec.mapped) bring(mapped_[i], parameters_[i].mapped, 0);
}

bool DeviceCopy::stale() const {
  for (std::size_t s = 0; s < segments_.size(); ++s)
    if (segments_[s].tensor.defined() && segments_[s].version != static_cast<std::uint32_t>(store_.shard(s)._version()))
      return true;
  return false;
}

void DeviceCopy::clear() {
  for (auto* copies : {&segments_, &mapped_})
    for (auto& copy : *copies) {
      if (copy.tensor.defined()) meter_.add(-static_cast<std::int64_t>(copy.tensor.nbytes()));
      copy.tensor.reset();
    }
}

const at::Tensor& DeviceCopy::memory_of(std::size_t parameter) const {
  const auto& p = parameters_[parameter];
  return p.spec.mapped ? mapped_[parameter].tensor : segments_[static_cast<std::size_t>(p.segment)].tensor;
}

}  // namespace tessera::fsdp
