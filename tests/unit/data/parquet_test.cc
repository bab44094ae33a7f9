// Parquet rows against the JSONL of the same rows, both written by tests/data/parquet/make_parquet.py.
#include <gtest/gtest.h>

#include "chat/json.h"
#include "data/row_source.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

TEST(Parquet, RowsAreThoseOfTheSameJsonl) {
#ifndef TESSERA_HAVE_PARQUET
  GTEST_SKIP() << "this build has no Arrow: set TESSERA_PYARROW to the folder of an installed pyarrow";
#endif
  const std::string folder = std::string(TESSERA_TEST_DATA) + "/parquet/rows";
  const auto parquet = open_rows(folder + ".parquet", ""), jsonl = open_rows(folder + ".jsonl", "");
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

}  // namespace
}  // namespace tessera::data
