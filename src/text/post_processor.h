#pragma once
// Fourth stage: puts special tokens around the ids of one text, or of two.
#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace tessera::text {

/// A template: texts A and B and special tokens, in order.
struct TemplatePart {
  enum class Kind { kFirst, kSecond, kSpecial } kind = Kind::kFirst;
  std::vector<std::int32_t> ids = {};  // of kSpecial
  std::int32_t type_id = 0;            // of all its tokens

  bool operator==(const TemplatePart&) const = default;
};

/// Offsets leave out as much white space as a token has at its ends.
struct OffsetTrim {
  bool add_prefix_space = false;  // one space at the start of the text was not in it: stays
};

struct PostProcessor {
  std::vector<OffsetTrim> trims;  // one behind the other, as upstream
  std::vector<TemplatePart> single{{TemplatePart::Kind::kFirst}};
  std::vector<TemplatePart> pair{{TemplatePart::Kind::kFirst}, {TemplatePart::Kind::kSecond, {}, 1}};

  /// How many tokens it adds.
  std::int64_t added(bool is_pair) const;
  /// `second` is null for one text. Gives the type ids.
  Encoding apply(const Encoding& first, const Encoding* second, bool add_special_tokens) const;
};

/// Cuts one text, or two, to `max_length` tokens in all. DataError when the chosen text is too short to be cut.
void truncate(Encoding& first, Encoding* second, std::int64_t max_length, Truncation truncation, Side side);

}  // namespace tessera::text
