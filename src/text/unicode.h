#pragma once
// White space and grapheme clusters.
#include <cstdint>

#include "base/utf8.h"

namespace tessera::text {

/// The White_Space property.
bool is_whitespace(char32_t c);
/// True when an extended grapheme cluster ends between the two. `state` starts at 0 and is carried along the text.
bool is_grapheme_break(char32_t before, char32_t after, std::int32_t& state);

}  // namespace tessera::text
