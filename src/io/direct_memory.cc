#include "io/direct_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace tessera::io {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

DirectMemory::DirectMemory(std::size_t bytes) : mapped_bytes_(bytes + kHugePageBytes) {
  mapping_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = static_cast<std::byte*>(mapping_) + (kHugePageBytes - begin % kHugePageBytes) % kHugePageBytes;
  ::madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: not every kernel has huge pages
  ::madvise(mapping_, mapped_bytes_, MADV_DONTFORK);
}

DirectMemory::~DirectMemory() {
  ::munmap(mapping_, mapped_bytes_);
}

}  // namespace tessera::io
