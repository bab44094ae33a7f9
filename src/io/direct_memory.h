#pragma once
// Memory that requests past the page cache (O_DIRECT) fill or empty.
#include <cstddef>

namespace tessera::io {

/// In huge pages where the kernel gives them: a driver takes so many segments a request (256 are common), so from small
/// pages, which lie anywhere, 8 MiB become eight requests one after the other, and a disk behind a hypervisor is idle
/// between them. Not passed on to children: a fork while a request runs would let it fill the wrong copy (open(2)).
class DirectMemory {
 public:
  /// std::bad_alloc when there is no room.
  explicit DirectMemory(std::size_t bytes);
  ~DirectMemory();
  DirectMemory(const DirectMemory&) = delete;
  DirectMemory& operator=(const DirectMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* mapping_;
  std::size_t mapped_bytes_;
  std::byte* data_;
};

}  // namespace tessera::io
