#pragma once
#include <string>
#include <vector>

#include "chat/value.h"

namespace tessera::chat {

struct WrapOptions {
  std::int64_t width = 79;  // code points a line, at least 1
  bool break_long_words = true, break_on_hyphens = true;
};

/// Python's textwrap.wrap without its treatment of tabs and line breaks: the lines of one paragraph.
std::vector<std::u32string> wrap(const std::u32string& text, const WrapOptions& options);

/// Python's pprint.pformat: the repr, with dictionaries sorted, broken into lines of at most 80 characters.
std::string pretty(const Value& value);

}  // namespace tessera::chat
