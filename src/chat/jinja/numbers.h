#pragma once
// int(text), float(text) and round(number, digits) as Python has them.
#include <optional>
#include <string_view>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// White space around, a sign, single underscores between digits; base 0 reads the prefixes 0b, 0o, 0x.
std::optional<Integer> parse_integer(std::string_view text, int base);
/// Also "inf", "infinity", "nan".
std::optional<double> parse_float(std::string_view text);
/// Half to even. Integers stay integers.
Value round_number(const Value& number, std::int64_t digits);

}  // namespace tessera::chat
