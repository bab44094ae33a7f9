#pragma once
#include <string>
#include <string_view>

namespace tessera {

inline constexpr int kMaxJsonNesting = 500;

/// A JSON text that nests at most so deep, for nlohmann's library: what it reads it copies, compares and writes by
/// recursion, which a file must not be able to drive to the end of the stack. Nor has it a zero byte, which that
/// library takes for the end of the text. DataError names the file.
std::string_view bounded_json(std::string_view text, const std::string& file);

}  // namespace tessera
