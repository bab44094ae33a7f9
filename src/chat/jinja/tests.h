#pragma once
// value is test(...)
#include <string_view>

#include "chat/jinja/runtime.h"

namespace tessera::chat {

using Test = bool (*)(Runtime&, const Value& input, Arguments);

struct TestEntry {
  std::string_view name;
  Test test;
};

/// All of them.
const std::vector<TestEntry>& all_tests();

/// Null where there is none of that name.
Test find_test(std::string_view name);

}  // namespace tessera::chat
