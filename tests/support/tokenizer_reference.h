#pragma once
// A tokenizer against the rows that transformers made (tests/data/tokenizers/make_reference.py and goldens D have the
// same forms).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/pad.h"
#include "text/tokenizer.h"

namespace tessera::test {

inline std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

/// file: "texts" and "batches", each with the arguments of the tokenizer's call and what it returned.
inline void expect_batches(const text::Tokenizer& tokenizer, const nlohmann::json& file) {
  using Ids = std::vector<std::int32_t>;
  const auto texts = file["texts"].get<std::vector<std::string>>();
  const auto side = [](const nlohmann::json& name) { return name == "left" ? text::Side::kLeft : text::Side::kRight; };
  for (const auto& batch : file["batches"]) {
    const auto& kwargs = batch["kwargs"];
    SCOPED_TRACE(kwargs.dump() + batch["padding_side"].dump() + batch["truncation_side"].dump());
    text::EncodeOptions options;
    options.add_special_tokens = kwargs.value("add_special_tokens", true);
    if (kwargs.value("truncation", false)) options.max_length = kwargs["max_length"];
    options.truncation_side = side(batch["truncation_side"]);
    std::vector<Ids> rows;
    for (const auto& line : texts) rows.push_back(tokenizer.encode(line, options).ids);
    if (!kwargs.contains("padding")) {
      EXPECT_EQ(rows, batch["input_ids"].get<std::vector<Ids>>());
      continue;
    }
    text::PadOptions pad_options;
    pad_options.pad_id = tokenizer.pad_id();
    pad_options.side = side(batch["padding_side"]);
    if (kwargs["padding"] == "max_length") pad_options.length = kwargs["max_length"];
    pad_options.multiple_of = kwargs.value("pad_to_multiple_of", 1);
    const auto padded = text::pad(rows, pad_options);
    EXPECT_EQ(padded.ids, batch["input_ids"].get<std::vector<Ids>>());
    EXPECT_EQ(padded.mask, batch["attention_mask"].get<std::vector<Ids>>());
  }
}

/// Each of `pairs`: texts "a" and "b", the arguments, and "ids" or "error".
inline void expect_pairs(const text::Tokenizer& tokenizer, const nlohmann::json& pairs) {
  using Ids = std::vector<std::int32_t>;
  ASSERT_FALSE(pairs.empty());
  for (const auto& pair : pairs) {
    SCOPED_TRACE(pair.dump(-1, ' ', true));
    const auto& kwargs = pair["kwargs"];
    const auto cut = kwargs.contains("truncation") ? kwargs["truncation"] : nlohmann::json();
    text::EncodeOptions options;
    options.max_length = kwargs.value("max_length", 0);
    if (cut == "only_first") options.truncation = text::Truncation::kOnlyFirst;
    if (cut == "only_second") options.truncation = text::Truncation::kOnlySecond;
    // Where nothing can be cut the reference logs an error and returns the row uncut; here it is an error.
    const auto expected = pair.contains("ids") ? pair["ids"].get<Ids>() : Ids();
    const auto a = pair["a"].get<std::string>(), b = pair["b"].get<std::string>();
    if (pair.contains("error") ||
        (options.max_length > 0 && static_cast<std::int64_t>(expected.size()) > options.max_length)) {
      EXPECT_ANY_THROW(tokenizer.encode_pair(a, b, options));
    } else {
      EXPECT_EQ(tokenizer.encode_pair(a, b, options).ids, expected);
    }
  }
}

}  // namespace tessera::test
