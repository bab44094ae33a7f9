// Every stage that looks at classes of code points, around every code point, against the tokenizers package
// (tests/data/tokenizers/make_unicode.py, whose texts and blocks these are).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/crc32.h"
#include "text/json_parts.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;

bool is_swept(char32_t c) {
  return (c < 0xD800 || c > 0xDFFF) && (c < 0x32400 || (c >= 0xE0000 && c < 0xE0200) || c % 257 == 0);
}

bool is_uniform(char32_t c) {
  constexpr std::array<std::pair<char32_t, char32_t>, 6> kAreas{{{0x3400, 0x9FFF},
                                                                 {0xAC00, 0xD7A3},
                                                                 {0xE000, 0xF8FF},
                                                                 {0x17000, 0x18CFF},
                                                                 {0x20000, 0x2F7FF},
                                                                 {0x30000, 0x323FF}}};
  return std::any_of(kAreas.begin(), kAreas.end(), [c](const auto& a) { return a.first <= c && c <= a.second; });
}

std::string text_of(char32_t first, bool alone) {
  std::string out;
  for (char32_t c = first; c < first + 64; ++c) {
    if (!is_swept(c) || (!alone && is_uniform(c) && c % 16 != 0)) continue;
    std::string sign;
    append_utf8(c, sign);
    out += alone ? sign + "a"
                 : fmt::format(
                       "a{0}b1{0} {0}{0}\u4e2d{0}'{0} S{0}t x\u0315{0}\u0323\u0345{0}e{0}\u0301\u1100{0}\u11a8 "
                       "\u3046{0}\u3099s",
                       sign);
  }
  return out;
}

class Stage {
 public:
  explicit Stage(const Json& form) : text_(form.dump()) {
    const JsonPlace json(parser_.parse(text_), "unicode.json", "");
    if (json.has("normalizer"))
      normalizer_ = json_normalizer(json.at("normalizer"));
    else
      pre_tokenizer_ = json_pre_tokenizer(json.at("pre_tokenizer"));
  }

  std::string result(const std::string& from) const {
    auto text = align(from);
    if (normalizer_) {
      normalizer_->normalize(text, 0);
      return to_utf8(text.data(), text.data() + text.size());
    }
    Pieces pieces{std::move(text), {}};
    pieces.list.push_back({0, pieces.text.size(), -1});
    pre_tokenizer_->cut(pieces);
    std::string out;
    for (const auto& piece : pieces.list) {
      if (&piece != pieces.list.data()) out += '\x1f';
      out += to_utf8(pieces.text.data() + piece.begin, pieces.text.data() + piece.end);
    }
    return out;
  }

 private:
  std::string text_;
  simdjson::dom::parser parser_;
  NormalizerPtr normalizer_;
  PreTokenizerPtr pre_tokenizer_;
};

TEST(Unicode, EveryStageEqualsTheReferenceOnEveryCodePoint) {
  const auto stages = Json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/tokenizers/unicode.json"));
  ASSERT_GT(stages.size(), 70u);
  std::array<std::vector<std::string>, 2> texts;
  for (const bool alone : {false, true})
    for (char32_t first = 0; first < 0x110000; first += 64) texts[alone].push_back(text_of(first, alone));
  for (const auto& form : stages) {
    const auto json = form.contains("normalizer") ? form["normalizer"] : form["pre_tokenizer"];
    SCOPED_TRACE(json.dump());
    const Stage stage(form);
    const auto expected = form["crc"].get<std::vector<std::uint32_t>>();
    ASSERT_EQ(expected.size(), 0x110000u >> 14);
    const auto& from = texts[form.value("alone", false)];
    for (std::size_t block = 0; block < expected.size(); ++block) {
      std::uint32_t crc = 0;
      for (std::size_t i = block << 8; i < (block + 1) << 8; ++i) {
        const auto result = stage.result(from[i]);
        crc = crc32(result.data(), result.size(), crc);
      }
      EXPECT_EQ(crc, expected[block]) << fmt::format("code points {:X} to {:X}", block << 14, (block << 14) + 0x3FFF);
    }
  }
}

}  // namespace
}  // namespace tessera::text
