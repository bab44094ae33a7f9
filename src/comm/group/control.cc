#include "comm/group/control.h"

#include <algorithm>
#include <cstring>

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

void Note::set(std::string_view text) {
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint64_t word = 0;
    const std::size_t begin = std::min(text.size(), i * sizeof(word));
    const std::size_t limit = i + 1 == kWords ? sizeof(word) - 1 : sizeof(word);  // the last byte stays zero
    std::memcpy(&word, text.data() + begin, std::min(text.size() - begin, limit));
    words_[i].store(word, std::memory_order_relaxed);
    if (begin + sizeof(word) > text.size()) return;
  }
}

std::string Note::get() const {
  std::string text(kWords * sizeof(std::uint64_t), '\0');
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
  }
  return text.substr(0, text.find('\0'));
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
