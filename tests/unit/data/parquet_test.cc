// Rows of Parquet and Arrow against the JSONL of the same rows, both written by tests/data/parquet/make_parquet.py.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/file.h"
#include "chat/jinja/json.h"
#include "data/chat_rows.h"
#include "data/row_source.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

/// Null in a build without Arrow, which must say what to do about it.
std::unique_ptr<RowSource> open_if_built(const std::string& file) {
  try {
    return open_rows(file, "");
  } catch (const DataError& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("configure it with TESSERA_PYARROW set"), std::string::npos) << message;
    EXPECT_NE(message.find("to_json('" + file.substr(0, file.rfind('.')) + ".jsonl'"), std::string::npos) << message;
    return nullptr;
  }
}

/// What is said of the next row, which must be a DataError.
std::string error_of_next(RowSource& rows) {
  SourceRow row;
  try {
    rows.next(row);
  } catch (const DataError& e) {
    return e.what();
  }
  return "it was read";
}

class RowsOf : public ::testing::TestWithParam<const char*> {};

TEST_P(RowsOf, AreThoseOfTheSameJsonl) {
  const std::string folder = std::string(TESSERA_TEST_DATA) + "/parquet/", file = folder + GetParam();
  const auto rows = open_if_built(file), jsonl = open_rows(folder + "rows.jsonl", "");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  SourceRow got, want;
  for (int i = 1; i <= 7; ++i) {
    ASSERT_TRUE(rows->next(got));
    ASSERT_TRUE(jsonl->next(want));
    EXPECT_EQ(where(got), file + ":" + std::to_string(i));
    EXPECT_EQ(chat::dump_json(chat::Value(parse_row(got))), chat::dump_json(chat::Value(parse_row(want))));
  }
  EXPECT_FALSE(rows->next(got));
  EXPECT_FALSE(rows->next(got));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RowsOf, ::testing::Values("rows.parquet", "rows.arrow", "table.arrow"),
                         [](const auto& kind) {
                           return std::string(kind.param).replace(std::string(kind.param).find('.'), 1, "_");
                         });

TEST(Arrow, ADamagedFileIsAnErrorThatNamesIt) {
  const std::string sound = std::string(TESSERA_TEST_DATA) + "/parquet/rows.arrow";
  if (open_if_built(sound) == nullptr) GTEST_SKIP() << "this build has no Arrow";
  test::TempFolder folder("damaged_arrow");
  const std::string file = folder.path() + "/rows.arrow", whole = read_file(sound);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, whole.size() / 2}) {
    write_file_atomically(file, whole.substr(0, size));
    try {
      const auto rows = open_rows(file, "");
      for (SourceRow row; rows->next(row);) continue;
      ADD_FAILURE() << size << " bytes were read as a whole file";
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find(file), std::string::npos) << e.what();
    }
  }
}

// Pictures lie beside texts; a row needs them nowhere, or says that they are no text.
TEST(Parquet, BytesThatAreNoTextMatterToWhoeverNeedsATextAlone) {
  const auto rows = open_if_built(std::string(TESSERA_TEST_DATA) + "/parquet/bytes.parquet");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  SourceRow first, second;
  ASSERT_TRUE(rows->next(first) && rows->next(second));
  const auto at = [](const SourceRow& row, std::string_view key) { return *parse_row(row)->find(key); };
  EXPECT_EQ(at(first, "text").text() + at(second, "text").text(), "onetwo");
  EXPECT_EQ(at(first, "raw").text(), "a plain text");
  EXPECT_EQ(called(at(second, "raw"), second), "bytes that are not UTF-8 text");
  EXPECT_EQ(chat::iterate(read_messages(*parse_row(first), first)).size(), 1U);
  try {
    read_messages(*parse_row(second), second);
    FAIL() << "it was read";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("\"messages[0].content\" must be a text or a list of parts, found bytes that"),
              std::string::npos)
        << e.what();
  }
}

TEST(Parquet, AMapWhoseKeysAreNoTextsIsAnErrorThatNamesRowAndColumn) {
  const auto rows = open_if_built(std::string(TESSERA_TEST_DATA) + "/parquet/byte_keys.parquet");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  SourceRow row;
  ASSERT_TRUE(rows->next(row));
  EXPECT_EQ(chat::dump_json(*parse_row(row)->find(std::string_view("map"))), R"({"a plain text": 1})");
  const auto text = error_of_next(*rows);
  EXPECT_NE(text.find("byte_keys.parquet:2: column \"map\": a map has keys of bytes that are not UTF-8 text"),
            std::string::npos)
      << text;
}

TEST(Arrow, ValuesThatNestTooDeepAreAnErrorThatNamesRowAndColumn) {
  const auto rows = open_if_built(std::string(TESSERA_TEST_DATA) + "/parquet/deep.arrow");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  const auto text = error_of_next(*rows);
  EXPECT_NE(text.find("deep.arrow:1: column \"x\": "), std::string::npos) << text;
}

// 1500 rows name one word of 5 MiB: all together they would take 7 GiB.
TEST(Parquet, AWordThatManyRowsNameIsNotMultipliedInMemory) {
  const auto peak_mib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;
  };
  const auto rows = open_if_built(std::string(TESSERA_TEST_DATA) + "/parquet/one_word.parquet");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  const auto before = peak_mib();
  SourceRow row;
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(rows->next(row));
  EXPECT_EQ(row.object->find(std::string_view("text"))->text().size(), 5U << 20);
  EXPECT_LT(peak_mib() - before, 1024);
}

TEST(Parquet, ARowOfVeryManyValuesIsRefusedByNumber) {
  const auto rows = open_if_built(std::string(TESSERA_TEST_DATA) + "/parquet/many_values.parquet");
  if (rows == nullptr) GTEST_SKIP() << "this build has no Arrow";
  SourceRow row;
  ASSERT_TRUE(rows->next(row));
  const auto text = error_of_next(*rows);
  EXPECT_NE(text.find("many_values.parquet:2: column \"x\": a row with more than 4194304 values"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace tessera::data
