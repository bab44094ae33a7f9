#pragma once
// Tokens by id and ids by token: a flat hash table, no allocation to look up.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class Vocabulary {
 public:
  /// Of equal tokens the one added last counts for find(). Ids may have gaps: their token is "".
  void reserve(std::size_t count);
  void add(std::string_view token, std::int32_t id);

  std::int32_t find(std::string_view token) const;  // -1: none
  /// Highest id + 1.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// How many tokens there are; less than size() where ids have gaps.
  std::int64_t count() const { return static_cast<std::int64_t>(count_); }
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::int32_t id = -1;  // -1: free
  };
  void grow(std::size_t slots);

  std::vector<std::string> tokens_;
  std::vector<Slot> slots_;  // a power of two, linear probing
  std::size_t count_ = 0;
};

/// 64 bits of hash over short byte strings.
std::uint64_t hash_bytes(std::string_view bytes);

}  // namespace tessera::text
