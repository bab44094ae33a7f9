#pragma once
// value is test(...)
#include <string_view>

#include "chat/runtime.h"

namespace tessera::chat {

using Test = bool (*)(Runtime&, const Value& input, Arguments);

/// Null where there is none of that name.
Test find_test(std::string_view name);

}  // namespace tessera::chat
