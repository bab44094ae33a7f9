#pragma once
// JSON as Python writes it.
#include <string>

namespace tessera {

/// NaN, Infinity and -Infinity, which Python's json writes and JSON has not, become null; texts keep them.
std::string without_non_numbers(const std::string& json);

}  // namespace tessera
