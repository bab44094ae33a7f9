#include "comm/shm/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace tessera::comm {
namespace {

class Mapping : public SharedRegion {
 public:
  Mapping(std::byte* data, std::int64_t size_bytes, std::size_t mapped)
      : data_(data), size_(size_bytes), mapped_(mapped) {}
  ~Mapping() override { munmap(data_, mapped_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const noexcept override { return data_; }
  std::int64_t size_bytes() const noexcept override { return size_; }

 private:
  std::byte* data_;
  std::int64_t size_;
  std::size_t mapped_;
};

}  // namespace

std::shared_ptr<SharedRegion> map_memory(std::int64_t size_bytes, int descriptor) {
  const auto length = static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1));
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  madvise(data, length, MADV_HUGEPAGE);  // a wish: not every kernel has huge pages here
  return std::make_shared<Mapping>(static_cast<std::byte*>(data), size_bytes, length);
}

}  // namespace tessera::comm
