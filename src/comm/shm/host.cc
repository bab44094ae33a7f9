#include "comm/shm/host.h"

#include <algorithm>
#include <cstring>

namespace tessera::comm {

void AbortRecord::set(int by, std::string_view why) {
  std::uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1)) return;
  rank = by;
  const std::size_t n = std::min(why.size(), sizeof(text) - 1);
  std::memcpy(text, why.data(), n);
  text[n] = 0;
  state.store(2);
}

void Host::remember(const std::shared_ptr<SharedRegion>& region) {
  std::erase_if(regions_, [](const auto& r) { return r.expired(); });
  regions_.push_back(region);
}

bool Host::is_shared(const std::byte* data, std::int64_t size_bytes) const {
  return std::any_of(regions_.begin(), regions_.end(), [&](const auto& known) {
    const auto region = known.lock();
    return region && data >= region->data() && data + size_bytes <= region->data() + region->size_bytes();
  });
}

}  // namespace tessera::comm
