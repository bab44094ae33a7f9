#pragma once
// Which parts of a range of addresses are free. Pure arithmetic: no memory.
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace tessera::tensor {

/// Best fit with the lowest address first, neighbours joined when they are freed: a step that repeats its requests
/// finds its places again, and the range grows no further.
class BlockMap {
 public:
  explicit BlockMap(std::int64_t capacity) : capacity_(capacity) {}
  /// Offset of a block of this size (> 0, a multiple of the caller's alignment), -1 when the range is full.
  std::int64_t take(std::int64_t size);
  /// The same from the other side: the end of the highest free block that is large enough. What is going to outlive its
  /// neighbours lies there, so that what they free joins in one piece below it.
  std::int64_t take_high(std::int64_t size);
  /// Whether either would give a block without growing.
  bool has_free(std::int64_t size) const { return by_size_.lower_bound({size, 0}) != by_size_.end(); }
  /// A block that take() gave, with its size.
  void give_back(std::int64_t offset, std::int64_t size);
  /// End of the highest block that ever was.
  std::int64_t end() const { return end_; }

 private:
  std::int64_t grow(std::int64_t size);
  void insert(std::int64_t offset, std::int64_t size);
  void erase(std::map<std::int64_t, std::int64_t>::iterator block);

  std::int64_t capacity_, end_ = 0;
  std::map<std::int64_t, std::int64_t> by_offset_;           // free blocks below end_
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // (size, offset) of the same
};

}  // namespace tessera::tensor
