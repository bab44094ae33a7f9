// Parquet rows against the JSONL of the same rows, both written by tests/data/parquet/make_parquet.py.
#include <gtest/gtest.h>

#include "chat/json.h"
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

}  // namespace
}  // namespace tessera::data
