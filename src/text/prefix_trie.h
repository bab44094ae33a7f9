#pragma once
// Byte strings -> ids, for finding all keys that begin a text. A double-array trie: one step is two array reads.
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

class PrefixTrie {
 public:
  PrefixTrie() = default;
  /// Keys must differ and not be empty; ids >= 0.
  explicit PrefixTrie(std::vector<std::pair<std::string_view, std::int32_t>> keys);

  std::int32_t find(std::string_view key) const;  // -1: none

  /// Calls f(length, id) for every key that begins `text`, shortest first.
  template <class F>
  void each_prefix(std::string_view text, F f) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto next = cells_[node].base + static_cast<unsigned char>(text[i]);
      if (cells_[next].parent != node) return;
      node = next;
      if (cells_[node].id >= 0) f(i + 1, cells_[node].id);
    }
  }

 private:
  static constexpr std::uint32_t kFree = 0xFFFFFFFFu, kRoot = 0xFFFFFFFEu;
  struct Cell {
    std::uint32_t base = 0;        // child by byte b lies at base + b
    std::uint32_t parent = kFree;  // cell whose child this is
    std::int32_t id = -1;
  };
  std::uint32_t place(const std::vector<unsigned char>& bytes);

  std::vector<Cell> cells_ = std::vector<Cell>(257);
  std::size_t first_free_ = 1, first_roomy_ = 1;  // where searches start, for nodes with one child and with more
};

}  // namespace tessera::text
