// Parquet rows against the JSONL of the same rows, both written by tests/data/parquet/make_parquet.py.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "chat/jinja/json.h"
#include "data/row_source.h"
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
    EXPECT_NE(message.find("to_json('" + file.substr(0, file.size() - 8) + ".jsonl'"), std::string::npos) << message;
    return nullptr;
  }
}

TEST(Parquet, RowsAreThoseOfTheSameJsonl) {
  const std::string folder = std::string(TESSERA_TEST_DATA) + "/parquet/rows";
  const auto parquet = open_if_built(folder + ".parquet"), jsonl = open_rows(folder + ".jsonl", "");
  if (parquet == nullptr) GTEST_SKIP() << "this build has no Arrow";
  SourceRow got, want;
  for (int i = 1; i <= 7; ++i) {
    ASSERT_TRUE(parquet->next(got));
    ASSERT_TRUE(jsonl->next(want));
    EXPECT_EQ(where(got), folder + ".parquet:" + std::to_string(i));
    EXPECT_EQ(chat::dump_json(chat::Value(parse_row(got))), chat::dump_json(chat::Value(parse_row(want))));
  }
  EXPECT_FALSE(parquet->next(got));
  EXPECT_FALSE(parquet->next(got));
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
  try {
    rows->next(row);
    FAIL() << "it was read";
  } catch (const DataError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("many_values.parquet:2: column \"x\": a row with more than 4194304 values"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace tessera::data
