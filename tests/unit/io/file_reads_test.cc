// Reads of many stretches of files in one pass.
#include "io/file_reads.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/crc32c.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

class FileReads : public testing::Test {
 protected:
  FileReads() {  // beside the program: on a disk, as TMPDIR need not be
    folder_ = fs::path(TESSERA_BINARY).parent_path() / ("file_reads_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    std::mt19937 random(3);
    bytes_.resize(40'000'003);  // five requests, more than are kept, and no whole block at the end
    for (std::size_t i = 0; i + 4 <= bytes_.size(); i += 4) {
      const auto word = static_cast<std::uint32_t>(random());
      std::memcpy(bytes_.data() + i, &word, 4);
    }
    std::ofstream(path(), std::ios::binary) << bytes_;
  }
  ~FileReads() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "file").string(); }
  void drop_from_page_cache() const {
    const int fd = ::open(path().c_str(), O_RDONLY);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  std::shared_ptr<const InputFile> open() const { return std::make_shared<InputFile>(path()); }

  fs::path folder_;
  std::string bytes_;
};

std::string text_of(const at::Tensor& t) {
  return {static_cast<const char*>(t.const_data_ptr()), t.nbytes()};
}

TEST_F(FileReads, PlaceAndSumEveryByteCachedOrNotAloneOrNot) {
  for (const auto readers : {Readers::kOne, Readers::kSeveral}) {
    for (const bool cached : {true, false}) {
      if (!cached) drop_from_page_cache();
      const auto file = open();
      const std::vector<std::uint64_t> cuts = {0, 1, 13, 4096, 300'000, 8'388'600, 29'000'001, bytes_.size()};
      std::vector<FileRead> reads;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        FileRead& read = reads.emplace_back();
        read.from = {file, cuts[i], cuts[i + 1] - cuts[i], readers};
        read.sum = static_cast<int>(i / 3);
        if (i % 2 == 1) read.out = at::zeros({static_cast<std::int64_t>(read.from.bytes)}, at::kByte);
      }
      const auto sums = read_files(reads, 3);
      EXPECT_EQ(sums[0], crc32c(bytes_.data(), 4096));
      EXPECT_EQ(sums[1], crc32c(bytes_.data() + 4096, 28'995'905));
      EXPECT_EQ(sums[2], crc32c(bytes_.data() + 29'000'001, 11'000'002));
      for (const auto& read : reads) {
        if (!read.out.defined()) continue;
        EXPECT_TRUE(text_of(read.out) == bytes_.substr(read.from.offset, read.from.bytes));
      }
    }
  }
}

TEST_F(FileReads, JumpOverGaps) {
  drop_from_page_cache();
  const auto file = open();
  std::vector<FileRead> reads;
  for (std::uint64_t at = 5; at + 70'000 < bytes_.size(); at += 70'000 + at / 7) {
    FileRead read;
    read.from = {file, at, 70'000, Readers::kOne};
    read.out = at::zeros({70'000}, at::kByte);
    reads.push_back(read);
  }
  read_files(reads);
  for (const auto& read : reads) EXPECT_TRUE(text_of(read.out) == bytes_.substr(read.from.offset, 70'000));
}

TEST_F(FileReads, ConvertToTheDtypeThatIsAskedFor) {
  const auto numbers = at::arange(2'000'000, at::kInt);
  std::ofstream(path(), std::ios::binary) << "head" << text_of(numbers);
  const auto out = at::zeros({1'500'000}, at::kDouble);
  FileRead part;
  part.from = {open(), 4 + 4 * 7, 6'000'000, Readers::kOne};
  part.stored = at::kInt;
  part.out = out;
  part.sum = 0;
  const auto sums = read_files({part}, 1);
  EXPECT_TRUE(out.equal(numbers.narrow(0, 7, 1'500'000).to(at::kDouble)));
  EXPECT_EQ(sums[0], crc32c(static_cast<const char*>(numbers.const_data_ptr()) + 28, 6'000'000));
}

TEST_F(FileReads, AFileThatWasCutSinceIsNamed) {
  for (const std::uint64_t bytes : {std::uint64_t{10'000}, std::uint64_t{bytes_.size()}}) {  // at once; by requests
    const auto file = open();
    drop_from_page_cache();
    fs::resize_file(path(), bytes - 5'000);
    try {
      FileRead all;
      all.from = {file, 0, bytes, Readers::kOne};
      read_files({all});
      ADD_FAILURE() << "accepted";
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find("ends too early"), std::string::npos) << e.what();
      EXPECT_EQ(e.file, path());
    }
    std::ofstream(path(), std::ios::binary) << bytes_;
  }
}

}  // namespace
}  // namespace tessera::io
