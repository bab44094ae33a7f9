#pragma once
// Finding texts in texts in linear time, whatever they are (std::string::find is quadratic at worst). All sizes and
// places are bytes; UTF-8 is found in UTF-8 only where a code point begins.
#include <string_view>

namespace tessera::chat {

/// npos where it is not there.
std::size_t find_first(std::string_view text, std::string_view wanted, std::size_t from = 0);
std::size_t find_last(std::string_view text, std::string_view wanted);

}  // namespace tessera::chat
