// Files of rows that another process cuts, writes to, replaces or removes while they are read where they lie. Each
// would be a SIGBUS, or rows of zeros, if nobody looked.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "data/row_cache.h"
#include "data/row_source.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 2000;  // some dozen pages

/// A row for every line, after `head`.
void write_rows(const std::string& file, const std::string& head, const std::string& row, const std::string& tail) {
  std::ofstream out(file, std::ios::binary);
  out << head;
  for (std::int64_t i = 0; i < kRows; ++i) out << row << (i + 1 < kRows || tail.empty() ? "\n" : tail);
}

void write_file(const std::string& file) {
  const auto kind = fs::path(file).extension().string();
  const std::string text = "a sentence about nothing that is long enough";
  const std::string json = R"({"text": ")" + text + R"("})";
  if (kind == ".jsonl") return write_rows(file, "", json, "");
  if (kind == ".json") return write_rows(file, "[{\"text\": \"first\"}\n", "," + json, "]");
  if (kind == ".csv") return write_rows(file, "text\n", text, "");
  if (kind == ".txt") return write_rows(file, "", text, "");
  fs::copy_file(std::string(TESSERA_TEST_DATA) + "/parquet/rows.parquet", file);
}

/// What reading to the end throws; the number of rows when nothing does.
std::string read_all(RowSource& rows) {
  SourceRow row;
  std::int64_t count = 0;
  try {
    for (; rows.next(row); ++count)
      if (row.object == nullptr) (void)parse_row(row);
  } catch (const DataError& e) {
    return e.what();
  }
  return std::to_string(count) + " rows";
}

class ChangedFiles : public testing::TestWithParam<const char*> {
 protected:
  ChangedFiles() : temporary_("changed_files"), file_(temporary_.path() + "/rows" + GetParam()) {}
  void SetUp() override {
    write_file(file_);
    try {
      (void)open_rows(file_, "text");
    } catch (const DataError& e) {
      ASSERT_NE(std::string(e.what()).find("this build reads no Parquet"), std::string::npos) << e.what();
      GTEST_SKIP() << "this build has no Arrow";
    }
  }
  /// The file is changed between the first row and the second.
  std::string read_while(const std::function<void()>& change) const {
    const auto rows = open_rows(file_, "text");
    SourceRow row;
    EXPECT_TRUE(rows->next(row));
    change();
    return read_all(*rows);
  }
  std::string unchanged() const {
    return read_while([] {});
  }
  void expect_named(const std::string& found) const {
    EXPECT_TRUE(found.starts_with(file_ + ": ")) << found;
    EXPECT_NE(found.find("it had "), std::string::npos) << found;
    EXPECT_NE(found.find("Rows are read where they lie in it"), std::string::npos) << found;
  }

  const test::TempFolder temporary_;
  const std::string file_;
};

TEST_P(ChangedFiles, AFileThatIsCutIsNamed) {
  expect_named(read_while([&] { fs::resize_file(file_, 4096); }));
}

// The page of the new end is still there, with zeros in it.
TEST_P(ChangedFiles, AFileThatLosesItsLastBytesIsNamed) {
  expect_named(read_while([&] { fs::resize_file(file_, fs::file_size(file_) - 10); }));
}

TEST_P(ChangedFiles, AFileThatIsWrittenAnewInPlaceIsNamed) {
  expect_named(read_while([&] { std::ofstream(file_) << "nothing\n"; }));
}

TEST_P(ChangedFiles, AFileThatIsReplacedOrRemovedIsReadToItsEnd) {
  const auto all = unchanged();
  EXPECT_NE(all.find(" rows"), std::string::npos) << all;
  EXPECT_EQ(read_while([&] {
              std::ofstream(file_ + ".new") << "nothing\n";
              fs::rename(file_ + ".new", file_);
            }),
            all);
  fs::remove(file_);
  write_file(file_);
  EXPECT_EQ(read_while([&] { fs::remove(file_); }), all);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ChangedFiles, testing::Values(".jsonl", ".json", ".csv", ".txt", ".parquet"),
                         [](const auto& info) { return std::string(info.param).substr(1); });

class ChangedRowCache : public testing::Test {
 protected:
  ChangedRowCache() : temporary_("changed_cache"), file_(temporary_.path() + "/rows") {
    RowCacheWriter writer(file_);
    for (std::int32_t i = 0; i < 500; ++i)
      writer.add({std::vector<std::int32_t>(40, i), std::vector<std::int32_t>(40, i), {40}});
    writer.finish({"a note"});
  }
  void expect_named(const std::function<void(const RowCache&)>& read) const {
    const auto rows = RowCache::open(file_);
    ASSERT_NE(rows, nullptr);
    EXPECT_EQ(rows->copy(400).input_ids, std::vector<std::int32_t>(40, 400));
    cut_();
    try {
      read(*rows);
      ADD_FAILURE() << "no error";
    } catch (const DataError& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with(file_ + ": ")) << e.what();
      EXPECT_NE(std::string(e.what()).find("start again, and they are made anew"), std::string::npos) << e.what();
    }
    EXPECT_EQ(RowCache::open(file_), nullptr) << "is not whole, and is made again";
  }

  const test::TempFolder temporary_;
  const std::string file_;
  std::function<void()> cut_ = [this] { fs::resize_file(file_, 4096); };
};

TEST_F(ChangedRowCache, ARowOfACutFileIsNamed) {
  expect_named([](const RowCache& rows) { (void)rows.copy(300); });
}

TEST_F(ChangedRowCache, AMarkOfACutFileIsNamed) {
  expect_named([](const RowCache& rows) { (void)rows.mark(300); });
}

TEST_F(ChangedRowCache, ALengthOfACutFileIsNamed) {
  expect_named([](const RowCache& rows) { (void)rows.row_length(300); });
}

TEST_F(ChangedRowCache, AFileThatLosesItsLastBytesIsNamed) {
  cut_ = [this] { fs::resize_file(file_, fs::file_size(file_) - 4); };
  expect_named([](const RowCache& rows) { (void)rows.copy(499); });
}

TEST_F(ChangedRowCache, ARemovedFileIsStillThere) {
  const auto rows = RowCache::open(file_);
  fs::remove(file_);
  EXPECT_EQ(rows->copy(499).labels, std::vector<std::int32_t>(40, 499));
  EXPECT_EQ(rows->notes(), std::vector<std::string>{"a note"});
}

}  // namespace
}  // namespace tessera::data
