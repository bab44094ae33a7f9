#pragma once
#include <string_view>

#include "chat/jinja/value.h"

namespace tessera::chat {

/// a + b, - * / // % **, with Python's meaning for numbers, strings, lists and tuples.
Value arithmetic(std::string_view operation, const Value& a, const Value& b);
Value negative(const Value& value);
Value positive(const Value& value);
/// == != < <= > >= in, not in.
bool compare(std::string_view operation, const Value& a, const Value& b);

}  // namespace tessera::chat
