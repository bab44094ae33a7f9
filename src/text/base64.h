#pragma once
#include <string>
#include <string_view>

namespace tessera::text {

std::string encode_base64(std::string_view bytes);

/// Up to the padding. False when the text is not base64.
bool decode_base64(std::string_view text, std::string& bytes);

}  // namespace tessera::text
