#pragma once
// A file of pages, mapped as weights are.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace tessera::test {

constexpr std::int64_t kPageBytes = 4096;

/// Pages of it that are in this process's memory.
inline std::int64_t resident_bytes(const at::Tensor& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.const_data_ptr());
  const auto first = address / kPageBytes, end = (address + view.nbytes() + kPageBytes - 1) / kPageBytes;
  std::vector<std::uint64_t> entries(end - first);
  const int map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const auto bytes = entries.size() * sizeof(std::uint64_t);
  EXPECT_EQ(::pread(map, entries.data(), bytes, static_cast<off_t>(first * sizeof(std::uint64_t))),
            static_cast<ssize_t>(bytes));
  ::close(map);
  return kPageBytes * std::count_if(entries.begin(), entries.end(), [](auto entry) { return (entry >> 63) == 1; });
}

class MappedFile {
 public:
  MappedFile(const std::string& name, std::int64_t pages) : temporary_(name), pages_(pages) {
    std::ofstream(path(), std::ios::binary) << std::string(static_cast<std::size_t>(pages_ * kPageBytes), 'x');
    const int file = ::open(path().c_str(), O_RDONLY | O_CLOEXEC);
    data_ = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    ::close(file);
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~MappedFile() { ::munmap(data_, bytes()); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string path() const { return temporary_.path() + "/file"; }
  at::Tensor view(std::int64_t offset, std::int64_t bytes) const {
    return at::from_blob(static_cast<std::byte*>(data_) + offset, {bytes}, at::kByte);
  }
  at::Tensor pages(std::int64_t first, std::int64_t count) const {
    return view(first * kPageBytes, count * kPageBytes);
  }
  std::int64_t resident_bytes() const { return test::resident_bytes(pages(0, pages_)); }
  void drop() const { ::madvise(data_, bytes(), MADV_DONTNEED); }
  /// The file loses what follows its first pages.
  void cut(std::int64_t pages) const {
    std::filesystem::resize_file(path(), static_cast<std::uintmax_t>(pages * kPageBytes));
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(pages_ * kPageBytes); }
  const TempFolder temporary_;
  std::int64_t pages_;
  void* data_ = nullptr;
};

}  // namespace tessera::test
