#include "tensor/file_pages.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <functional>

#include "support/mapped_file.h"
#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

using test::kPageBytes;
using test::MappedFile;

std::int64_t first_byte(const at::Tensor& t) {
  return *t.const_data_ptr<std::uint8_t>();
}

std::string error_of(const std::function<void()>& action, const std::string& file) {
  try {
    action();
  } catch (const DataError& e) {
    EXPECT_EQ(e.file, file);
    return e.what();
  }
  return "no error";
}

TEST(FilePages, AreThoseOfViewsOfFilesAlone) {
  const MappedFile file("file_pages", 20);
  EXPECT_TRUE(FilePages(std::vector<at::Tensor>()).empty());
  EXPECT_TRUE(FilePages({at::ones({10'000})}).empty());
  const FilePages pages({file.pages(10, 2), at::ones({10'000}), file.view(100, 2 * kPageBytes), file.view(9000, 10)});
  const auto start = reinterpret_cast<std::uintptr_t>(file.pages(0, 1).const_data_ptr());
  ASSERT_EQ(pages.ranges().size(), 2u) << "neighbours are one";
  EXPECT_EQ(pages.ranges()[0].begin, start);
  EXPECT_EQ(pages.ranges()[0].end, start + 3 * kPageBytes);
  EXPECT_EQ(pages.ranges()[1].begin, start + 10 * kPageBytes);
  EXPECT_EQ(pages.ranges()[1].end, start + 12 * kPageBytes);
}

TEST(FilePages, AdviceForANeighbourOnTheSamePageHidesNothing) {
  const MappedFile file("file_pages_neighbours", 20);
  FilePages({file.view(0, 2 * kPageBytes + 100)}).expect_passes();
  const FilePages next({file.view(2 * kPageBytes + 100, 3 * kPageBytes)});
  ASSERT_EQ(next.ranges().size(), 1u);
  EXPECT_EQ(next.ranges()[0].end - next.ranges()[0].begin, 4u * kPageBytes);
}

TEST(FilePages, SmallViewsLeaveMemoryToo) {
  const MappedFile file("file_pages_small", 2);
  const FilePages pages({file.view(100, 8), file.view(kPageBytes - 4, 8)});
  EXPECT_EQ(first_byte(file.pages(1, 1)), 'x');
  EXPECT_GT(file.resident_bytes(), 0);
  pages.drop();
  EXPECT_EQ(file.resident_bytes(), 0);
  EXPECT_EQ(first_byte(file.view(100, 8)), 'x') << "and come back";
}

TEST(FilePages, WhatAFileHasLostReadsAsZerosAndIsNamed) {
  const MappedFile file("file_pages_cut", 50);
  const FilePages pages({file.pages(0, 20)}), same({file.pages(5, 20)}), other({file.pages(30, 10)});
  EXPECT_EQ(first_byte(file.pages(12, 1)), 'x');
  file.cut(10);
  EXPECT_EQ(first_byte(file.pages(9, 1)), 'x');
  pages.check();
  EXPECT_EQ(first_byte(file.view(12 * kPageBytes + 7, 1)), 0);
  const auto found = error_of([&] { pages.check(); }, file.path());
  EXPECT_NE(found.find(file.path() + ": cannot be read at byte 49159"), std::string::npos) << found;
  EXPECT_NE(found.find("it had 204800 bytes then and has 40960 now"), std::string::npos) << found;
  EXPECT_EQ(error_of([&] { same.check(); }, file.path()), found) << "whoever else reads the page";
  other.check();
  EXPECT_NE(error_of([&] { pages.check_unchanged(); }, file.path()).find("was written to during the run"),
            std::string::npos);
  FilePages({file.pages(0, 20)}).check();  // a new one knows nothing of the last one's fate
}

TEST(FilePages, AFileThatIsReplacedUnderItsNameIsStillThere) {
  const MappedFile file("file_pages_replaced", 3);
  const FilePages pages({file.pages(0, 3)});
  std::ofstream(file.path() + ".new") << "another";
  std::filesystem::rename(file.path() + ".new", file.path());
  pages.drop();
  EXPECT_EQ(first_byte(file.pages(2, 1)), 'x');
  pages.check_unchanged();
  pages.check();
  std::filesystem::remove(file.path());
  pages.check_unchanged();
}

TEST(FilePages, AFileThatIsWrittenToIsNamed) {
  const MappedFile file("file_pages_written", 3);
  const FilePages pages({file.pages(0, 3)});
  pages.check_unchanged();
  std::filesystem::last_write_time(file.path(),
                                   std::filesystem::last_write_time(file.path()) + std::chrono::seconds(1));
  EXPECT_NE(error_of([&] { pages.check_unchanged(); }, file.path()).find("was written to during the run"),
            std::string::npos);
}

TEST(FilePages, AFileWithANewLineInItsNameIsWatchedToo) {
  const MappedFile file("file_pages\nof two lines", 3);
  const FilePages pages({file.pages(0, 3)});
  file.cut(2);
  EXPECT_NE(error_of([&] { pages.check_unchanged(); }, file.path()).find("was written to during the run"),
            std::string::npos);
}

TEST(FilePagesDeathTest, APageThatNobodyGuardsEndsTheProcessAsBefore) {
  const MappedFile file("file_pages_death", 10);
  const FilePages pages({file.pages(0, 5)});
  file.cut(1);
#ifdef TESSERA_ADDRESS_SANITIZER  // reports the signal and exits
  const auto ends = ::testing::ExitedWithCode(1);
#else
  const auto ends = ::testing::KilledBySignal(SIGBUS);
#endif
  EXPECT_EXIT(std::exit(static_cast<int>(first_byte(file.pages(7, 1)))), ends, "");
}

}  // namespace
}  // namespace tessera::tensor
