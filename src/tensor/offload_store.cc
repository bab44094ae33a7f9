#include "tensor/offload_store.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "base/descriptor.h"
#include "base/page_size.h"
#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

[[noreturn]] void fail_offload(const std::string& folder, const std::string& what, int error) {
  throw Error("offloading to '" + folder + "': " + what + ": " + std::strerror(error) +
              "; choose a folder on a disk with room (fsdp_offload_folder)");
}

/// A new file with all its blocks; `path` receives its name.
Descriptor make_reserved_file(const std::string& folder, std::int64_t size_bytes, std::string& path) {
  path = folder + "/.tessera-offload-XXXXXX";
  Descriptor file(mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) fail_offload(folder, "cannot make a file", errno);
  const int error = posix_fallocate(file.get(), 0, std::max<std::int64_t>(size_bytes, 1));
  if (error == 0) return file;
  unlink(path.c_str());
  fail_offload(folder, "cannot reserve " + std::to_string(size_bytes) + " bytes", error);
}

std::uintptr_t address_of(const at::Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr());
}

/// Only whole pages: what shares a page with a neighbour stays.
void advise_pages(const at::Tensor& t, int advice) {
  const auto page = page_bytes(), first = (address_of(t) + page - 1) / page * page;
  const auto last = (address_of(t) + t.nbytes()) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

}  // namespace

struct DiskStore::Ranges {
  mutable std::mutex mutex;
  std::map<std::uintptr_t, std::int64_t> sizes;  // by the first address
  std::int64_t held = 0;

  void add(const void* data, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    sizes[reinterpret_cast<std::uintptr_t>(data)] = bytes;
    held += bytes;
  }
  void remove(const void* data) {
    const std::lock_guard lock(mutex);
    const auto found = sizes.find(reinterpret_cast<std::uintptr_t>(data));
    held -= found->second;
    sizes.erase(found);
  }
  bool contains(std::uintptr_t begin, std::int64_t bytes) const {
    const std::lock_guard lock(mutex);
    auto after = sizes.upper_bound(begin);
    if (after == sizes.begin()) return false;
    const auto& [first, size] = *std::prev(after);
    return begin + static_cast<std::uintptr_t>(bytes) <= first + static_cast<std::uintptr_t>(size);
  }
};

DiskStore::DiskStore(const std::string& folder) : folder_(folder), ranges_(std::make_shared<Ranges>()) {
  struct statfs about{};
  if (statfs(folder.c_str(), &about) != 0) fail_offload(folder, "cannot look at it", errno);
  if (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC)
    throw Error("offloading to '" + folder +
                "' would save nothing: the folder is in memory (tmpfs); choose one on a disk (fsdp_offload_folder)");
  if (access(folder.c_str(), W_OK | X_OK) != 0) fail_offload(folder, "cannot write there", errno);
}

DiskStore::~DiskStore() = default;

std::shared_ptr<std::byte> DiskStore::map(int descriptor, std::int64_t size_bytes) {
  const auto length = static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1));
  void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) fail_offload(folder_, "cannot map " + std::to_string(size_bytes) + " bytes", errno);
  ranges_->add(data, static_cast<std::int64_t>(length));
  return {static_cast<std::byte*>(data), [ranges = ranges_, length](std::byte* mapped) {
            ranges->remove(mapped);
            munmap(mapped, length);
          }};
}

at::Tensor DiskStore::allocate(std::int64_t numel, at::ScalarType dtype) {
  const auto bytes = numel * static_cast<std::int64_t>(c10::elementSize(dtype));
  std::string path;
  const Descriptor file = make_reserved_file(folder_, bytes, path);
  unlink(path.c_str());
  const auto memory = map(file.get(), bytes);
  return at::from_blob(memory.get(), {numel}, [memory](void*) {}, at::TensorOptions().dtype(dtype));
}

std::string DiskStore::make_file(std::int64_t size_bytes) {
  std::string path;
  make_reserved_file(folder_, size_bytes, path);
  return path;
}

std::shared_ptr<std::byte> DiskStore::map_file(const std::string& path, std::int64_t size_bytes) {
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) fail_offload(folder_, "cannot open '" + path + "'", errno);
  return map(file.get(), size_bytes);
}

void DiskStore::forget_file(const std::string& path) noexcept {
  unlink(path.c_str());
}

void DiskStore::advise(const at::Tensor& t, int advice) const {
  if (ranges_->contains(address_of(t), static_cast<std::int64_t>(t.nbytes()))) advise_pages(t, advice);
}

void DiskStore::fetch(const at::Tensor& t) const {
  advise(t, MADV_WILLNEED);
}

// A shared mapping loses its pages, not its values: those lie in the file's cache, which the kernel writes and
// reclaims.
void DiskStore::evict(const at::Tensor& t) const {
  advise(t, MADV_DONTNEED);
}

std::int64_t DiskStore::held_bytes() const {
  const std::lock_guard lock(ranges_->mutex);
  return ranges_->held;
}

}  // namespace tessera::tensor
