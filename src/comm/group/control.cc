#include "comm/group/control.h"

namespace tessera::comm {

const char* op_name(Op op) {
  switch (op) {
    case Op::kNone:
      return "nothing";
    case Op::kAllGather:
      return "all_gather";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kReduceShared:
      return "reduce_shared";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
    case Op::kGather:
      return "gather";
    case Op::kAllGatherObjects:
      return "all_gather_objects";
    case Op::kScatter:
      return "scatter";
    case Op::kBroadcastObject:
      return "broadcast_object";
    case Op::kSplit:
      return "split";
    case Op::kMapShared:
      return "map_shared";
  }
  return "unknown";
}

std::int64_t Control::header_bytes(int size) {
  constexpr std::int64_t kPage = 4096;
  const auto states = static_cast<std::int64_t>(sizeof(RankState)) * size;
  const auto announcements = static_cast<std::int64_t>(sizeof(Announcement)) * kRing * size;
  return (states + announcements + kPage - 1) / kPage * kPage;
}

std::int64_t Control::bytes(int size) {
  return header_bytes(size) + (size > 1 ? std::int64_t{size} * kStages * kStageBytes : 0);
}

}  // namespace tessera::comm
