#include "text/prefix_trie.h"

#include <algorithm>

namespace tessera::text {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, std::int32_t>> keys) {
  std::sort(keys.begin(), keys.end());
  cells_.assign(keys.size() * 4 + 1024, {});
  cells_[0].parent = kRoot;
  struct Range {
    std::size_t begin, end, depth;
    std::uint32_t node;
  };
  std::vector<Range> open{{0, keys.size(), 0, 0}};
  std::vector<unsigned char> bytes;
  while (!open.empty()) {
    auto range = open.back();
    open.pop_back();
    if (range.begin < range.end && keys[range.begin].first.size() == range.depth)
      cells_[range.node].id = keys[range.begin++].second;
    if (range.begin == range.end) continue;
    const auto byte_of = [&](std::size_t i) { return static_cast<unsigned char>(keys[i].first[range.depth]); };
    bytes.clear();
    for (auto i = range.begin; i < range.end; ++i)
      if (bytes.empty() || bytes.back() != byte_of(i)) bytes.push_back(byte_of(i));
    const auto base = place(bytes);
    cells_[range.node].base = base;
    auto begin = range.begin;
    for (auto byte : bytes) {
      auto end = begin;
      while (end < range.end && byte_of(end) == byte) ++end;
      cells_[base + byte].parent = range.node;
      open.push_back({begin, end, range.depth + 1, base + byte});
      begin = end;
    }
  }
}

// A base at which the cells of all these bytes are free. Keeps 256 cells behind it, so that lookups need no bound
// check.
std::uint32_t PrefixTrie::place(const std::vector<unsigned char>& bytes) {
  // Nodes with one child take any free cell. The others start where the last search got tired: the front is crowded,
  // and searching it again for every node would take seconds.
  auto& front = bytes.size() == 1 ? first_free_ : first_roomy_;
  std::size_t visited = 0;
  for (auto cell = std::max<std::size_t>(front, bytes.front() + 1u);; ++cell) {
    const auto base = cell - bytes.front();
    if (base + 512 > cells_.size()) cells_.resize(cells_.size() * 2 + 512);
    if (++visited == 256) {
      front = cell;
      visited = 0;
    }
    if (cells_[cell].parent != kFree) continue;
    const bool fits =
        std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return cells_[base + b].parent == kFree; });
    if (fits) return static_cast<std::uint32_t>(base);
  }
}

std::int32_t PrefixTrie::find(std::string_view key) const {
  std::int32_t out = -1;
  each_prefix(key, [&](std::size_t length, std::int32_t id) {
    if (length == key.size()) out = id;
  });
  return out;
}

}  // namespace tessera::text
