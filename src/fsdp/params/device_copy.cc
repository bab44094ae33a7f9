#include "fsdp/params/device_copy.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/base/error.h"

namespace tessera::fsdp {

DeviceCopy::DeviceCopy(const std::vector<UnitParameter>& parameters, const ParameterStore& store, at::Device device,
                       tensor::Uploader& uploader, GatherMeter& meter)
    : parameters_(parameters),
      store_(store),
      device_(device),
      uploader_(uploader),
      meter_(meter),
      segments_(store.segments()),
      mapped_(parameters.size()) {}

// The memory that copies read may go next.
DeviceCopy::~DeviceCopy() {
  clear();
  try {
    uploader_.settle();
  } catch (...) {  // a device that has failed copies no more
  }
}

template <class Visit>
void DeviceCopy::visit_missing(const Visit& visit) {
  const auto see = [&](Copy& copy, const at::Tensor& host, std::uint32_t version) {
    if (copy.version != version) visit(copy, host, version);
  };
  for (std::size_t s = 0; s < segments_.size(); ++s)
    see(segments_[s], store_.whole(s), static_cast<std::uint32_t>(store_.shard(s)._version()));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].spec.mapped) see(mapped_[i], parameters_[i].mapped, 0);
}

void DeviceCopy::start() {
  bool any = false;
  visit_missing([&](Copy& copy, const at::Tensor& host, std::uint32_t) {
    any = true;
    if (copy.tensor.defined()) return;
    copy.tensor = at::empty(host.sizes(), host.options().device(device_));
    meter_.add(static_cast<std::int64_t>(copy.tensor.nbytes()));
  });
  if (!any) return;
  TESSERA_CHECK(!started_, "copies that were started are finished before others are");
  started_ = uploader_.begin();
  visit_missing([&](Copy& copy, const at::Tensor& host, std::uint32_t version) {
    uploader_.add(started_, copy.tensor, host);
    copy.version = version;
  });
  uploader_.end(*started_);
}

void DeviceCopy::finish() {
  if (const auto batch = std::exchange(started_, nullptr)) uploader_.wait(*batch);
}

bool DeviceCopy::stale() const {
  for (std::size_t s = 0; s < segments_.size(); ++s)
    if (segments_[s].version && segments_[s].version != static_cast<std::uint32_t>(store_.shard(s)._version()))
      return true;
  return false;
}

void DeviceCopy::clear() noexcept {
  try {
    finish();
  } catch (...) {  // nobody reads what did not come
  }
  for (auto* copies : {&segments_, &mapped_})
    for (auto& copy : *copies) {
      if (copy.tensor.defined()) meter_.add(-static_cast<std::int64_t>(copy.tensor.nbytes()));
      copy = {};
    }
}

const at::Tensor& DeviceCopy::memory_of(std::size_t parameter) const {
  const auto& p = parameters_[parameter];
  return p.spec.mapped ? mapped_[parameter].tensor : segments_[static_cast<std::size_t>(p.segment)].tensor;
}

}  // namespace tessera::fsdp
