#include "base/python_json.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(PythonJson, NonNumbersBecomeNullOutsideTexts) {
  EXPECT_EQ(without_non_numbers(R"({"a": NaN, "b": [Infinity, -Infinity, -1]})"),
            R"({"a": null, "b": [null, null, -1]})");
  EXPECT_EQ(without_non_numbers(R"({"NaN": "say \"NaN\" \\", "b": NaN})"), R"({"NaN": "say \"NaN\" \\", "b": null})");
  EXPECT_EQ(without_non_numbers("\"a\\"), "\"a\\") << "cut";
}

}  // namespace
}  // namespace tessera
