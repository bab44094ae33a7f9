#pragma once
// Python's two ways of filling in a text.
#include <string>

#include "chat/jinja/value.h"

namespace tessera::chat {

constexpr std::int64_t kMaxWidth = 1 << 30;  // wider ones are not read; what is written is charged
constexpr std::int64_t kFieldWork = 200;     // of one field

/// format % arguments.
std::string format_percent(const Value& format, const Value& arguments);
/// format.format(...), with {name.attribute[item]!r:spec}.
std::string format_braces(const Value& format, const Arguments& arguments);
/// One value by a format specification: [[fill]align][sign][#][0][width][,][.precision][type].
std::string format_value(const Value& value, std::string_view spec);

}  // namespace tessera::chat
