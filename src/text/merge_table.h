#pragma once
// The merges of byte pair encoding: pair of ids -> rank and id of what they become. A flat hash table.
#include <cstdint>
#include <vector>

namespace tessera::text {

struct Merge {
  std::int32_t rank = -1;  // -1: no such merge
  std::int32_t id = -1;
};

class MergeTable {
 public:
  void reserve(std::size_t count);
  /// Of equal pairs the one added last counts.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty()) return {};
    const auto key = pack(left, right);
    for (auto at = start(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == kFree) return {};
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static std::uint64_t pack(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }
  std::size_t start(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }
  void grow(std::size_t slots);

  std::vector<Slot> slots_;  // a power of two, linear probing
  int shift_ = 63;           // 64 - log2(slots)
  std::size_t count_ = 0;
};

}  // namespace tessera::text
