#include "tensor/page_reader.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/few_threads.h"
#include "support/mapped_file.h"

namespace tessera::tensor {
namespace {

using test::kPageBytes;

constexpr std::int64_t kPages = 3000;

class PageReaderTest : public testing::Test {
 protected:
  std::shared_ptr<const FilePages> pages(std::int64_t first, std::int64_t count) const {
    return std::make_shared<const FilePages>(std::vector{file_.pages(first, count)});
  }
  const test::MappedFile file_{"page_reader", kPages};
};

TEST_F(PageReaderTest, WhatIsAskedForIsMappedAndNoMore) {
  for (const int rank : {0, 1, 2}) {
    PageReader reader(rank, 3);
    const auto asked = std::make_shared<const FilePages>(std::vector{file_.pages(0, 1500), file_.pages(1600, 10)});
    asked->drop();
    EXPECT_EQ(file_.resident_bytes(), 0);
    reader.bring(asked);
    reader.wait();
    EXPECT_GE(file_.resident_bytes(), 1510 * kPageBytes);
    EXPECT_LE(file_.resident_bytes(), 8 << 20);  // the last of them, and what the kernel maps with it: at most 2 MiB
    file_.drop();
  }
}

TEST_F(PageReaderTest, WhatIsForgottenIsNotReadAndNotOnItsWay) {
  PageReader reader(0, 1);
  const auto first = pages(0, 10), second = pages(0, kPages);
  reader.forget(*first);  // never asked for
  for (int i = 0; i < 100; ++i) {
    reader.bring(second);
    while (i % 2 == 0 && file_.resident_bytes() == 0) std::this_thread::yield();
    reader.forget(*second);
    second->drop();
    reader.wait();
    EXPECT_EQ(file_.resident_bytes(), 0) << "something came after it was forgotten";
  }
}

TEST_F(PageReaderTest, APageThatCannotBeReadIsLeftToItsReader) {
  PageReader reader(0, 1);
  file_.cut(10);
  reader.bring(pages(0, kPages));
  reader.wait();
  EXPECT_LE(file_.resident_bytes(), 10 * kPageBytes);
}

TEST_F(PageReaderTest, LeavesAllToTheReadersWhereItGetsNoThread) {
  const test::FewThreads none(0);
  PageReader reader(0, 1);
  reader.bring(pages(0, kPages));
  reader.wait();
  EXPECT_EQ(file_.resident_bytes(), 0);
}

TEST_F(PageReaderTest, EndsWithWorkLeft) {
  PageReader reader(0, 1);
  for (int i = 0; i < 50; ++i) reader.bring(pages(0, kPages));
}

}  // namespace
}  // namespace tessera::tensor
