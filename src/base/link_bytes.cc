#include "base/link_bytes.h"

namespace tessera {

LinkBytes least_link_bytes(HostOperation operation, const HostPlace& place, double numel, double item) {
  constexpr double kSum = 4;
  const int hosts = place.hosts, host = place.host;
  const double others = (hosts - 1.0) / hosts;
  const LinkBytes gather{others * numel * item, others * numel * item};
  if (operation == HostOperation::kAllGather) return gather;
  if (operation == HostOperation::kBroadcast) return {host + 1 < hosts ? numel * item : 0, host > 0 ? numel * item : 0};
  const bool to_all = operation == HostOperation::kAllReduce;
  if (sums_directly(place.ranks, item)) {
    const double bytes = others * numel * place.ranks * item;
    return to_all ? LinkBytes{bytes + gather.out, bytes + gather.in} : LinkBytes{bytes, bytes};
  }
  LinkBytes chain{host + 1 < hosts ? numel * kSum : 0, host > 0 ? numel * kSum : 0};
  if (to_all) {
    if (host + 1 < hosts) chain.in += numel * item;
    if (host + 2 < hosts || host + 1 == hosts) chain.out += numel * item;
  } else if (host + 1 < hosts) {
    chain.in += numel * kSum / hosts;
  } else {
    chain.out += others * numel * kSum;
  }
  return chain;
}

}  // namespace tessera
