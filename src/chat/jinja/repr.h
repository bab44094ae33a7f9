#pragma once
// Python's str() and repr() of values.
#include <string>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// What {{ value }} prints.
std::string to_text(const Value& value);
std::string repr(const Value& value);
/// repr() with \x, \u and \U for all that is not ASCII.
std::string ascii(const Value& value);
/// The shortest digits that read back as the same number: 1.0, 1e-07, 1e+22, inf, nan.
std::string repr_float(double value);
std::string repr_text(std::string_view utf8);

}  // namespace tessera::chat
