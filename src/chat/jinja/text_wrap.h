#pragma once
#include <string>

#include "chat/jinja/text_builder.h"
#include "chat/jinja/value.h"

namespace tessera::chat {

struct WrapOptions {
  std::int64_t width = 79;  // code points a line, at least 1
  bool break_long_words = true, break_on_hyphens = true;
  std::string separator = "\n";  // between lines
};

/// Python's textwrap.wrap without its treatment of tabs and line breaks: adds the lines of one paragraph.
void wrap(const std::u32string& text, const WrapOptions& options, TextBuilder& out);

/// Python's pprint.pformat: the repr, with dictionaries sorted, broken into lines of at most 80 characters.
std::string pretty(const Value& value);

}  // namespace tessera::chat
