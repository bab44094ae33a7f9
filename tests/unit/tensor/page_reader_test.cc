#include "tensor/page_reader.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "support/temp_folder.h"

namespace tessera::tensor {
namespace {

constexpr std::int64_t kPages = 3000, kPageBytes = 4096;

/// A file of kPages pages, mapped.
class PageReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = temporary_.path() + "/file";
    std::ofstream(path, std::ios::binary) << std::string(static_cast<std::size_t>(kPages * kPageBytes), 'x');
    const int file = ::open(path.c_str(), O_RDONLY);
    data_ = ::mmap(nullptr, kPages * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    ::close(file);
    ASSERT_NE(data_, MAP_FAILED);
  }
  void TearDown() override { ::munmap(data_, kPages * kPageBytes); }

  at::Tensor pages(std::int64_t first, std::int64_t count) const {
    return at::from_blob(static_cast<std::byte*>(data_) + first * kPageBytes, {count * kPageBytes}, at::kByte);
  }
  /// Of the mapping's resident set; advice for a part of it makes it several.
  std::int64_t mapped_bytes() const {
    std::ifstream maps("/proc/self/smaps");
    const auto address = reinterpret_cast<std::uintptr_t>(data_);
    std::int64_t bytes = 0;
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t from = 0, to = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
        here = address <= from && from < address + kPages * kPageBytes;
      if (here && line.starts_with("Rss:")) bytes += std::stoll(line.substr(4)) * 1024;
    }
    return bytes;
  }

  const test::TempFolder temporary_{"page_reader"};
  void* data_ = nullptr;
};

TEST_F(PageReaderTest, WhatIsAskedForIsMappedAndNoMore) {
  PageReader reader;
  EXPECT_EQ(mapped_bytes(), 0);
  reader.bring({pages(0, 1500), pages(1600, 10)});
  reader.wait();
  EXPECT_GE(mapped_bytes(), 1510 * kPageBytes);
  EXPECT_LE(mapped_bytes(), 8 << 20);  // the last of them, and what the kernel maps with it: at most 2 MiB at a time
}

TEST_F(PageReaderTest, WhatIsForgottenIsNotRead) {
  PageReader reader;
  const auto first = pages(0, 10), second = pages(1500, 1500);
  reader.forget(first);  // never asked for
  reader.bring({first, second});
  reader.forget(second);
  reader.wait();
  EXPECT_LE(mapped_bytes(), 1044 * kPageBytes) << "at most one piece";
}

TEST_F(PageReaderTest, EndsWithWorkLeft) {
  PageReader reader;
  for (int i = 0; i < 50; ++i) reader.bring({pages(0, kPages)});
}

}  // namespace
}  // namespace tessera::tensor
