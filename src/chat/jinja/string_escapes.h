#pragma once
#include <string>
#include <string_view>

namespace tessera::chat {

/// The escapes of Python's string literals: \n \t \\ \' \" \a \b \f \v \r \ooo \xhh \uhhhh \Uhhhhhhhh, a backslash at
/// the end of a line; unknown ones stay as they are. TemplateError(kSyntax) for broken ones.
std::string unescape(std::string_view text);

}  // namespace tessera::chat
