#include "base/bounded_json.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string nested(int levels) {
  return std::string(static_cast<std::size_t>(levels), '[') + std::string(static_cast<std::size_t>(levels), ']');
}

TEST(BoundedJson, TakesFiveHundredLevelsAndNoMore) {
  EXPECT_EQ(bounded_json(nested(500), "a.json"), nested(500));
  try {
    (void)bounded_json("{\"a\": " + nested(500) + "}", "a.json");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_EQ(e.file, "a.json");
    EXPECT_NE(std::string(e.what()).find("a.json: JSON that nests deeper than 500 levels"), std::string::npos);
  }
}

TEST(BoundedJson, BracketsOfTextsAndClosedOnesDoNotCount) {
  std::string many = R"({"text": "\"[[[\\", "rest": [)";
  for (int i = 0; i < 2000; ++i) many += "[\"[{\"], ";
  EXPECT_NO_THROW((void)bounded_json(many + "0]}", "a.json"));
}

TEST(BoundedJson, AZeroByteIsNotTheEnd) {
  using namespace std::string_view_literals;
  for (const auto text : {"{}\0"sv, "{}\0, \"a\": 1}"sv}) {
    try {
      (void)bounded_json(text, "a.json");
      ADD_FAILURE() << text.size();
    } catch (const DataError& e) {
      EXPECT_STREQ(e.what(), "a.json: not valid JSON: a zero byte, at byte 3");
    }
  }
}

}  // namespace
}  // namespace tessera
