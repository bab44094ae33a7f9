#pragma once
// Bytes of a text file -> UTF-8.
#include <optional>
#include <string>
#include <string_view>

#include "data/text_pair.h"

namespace tessera::data {

/// The text in UTF-8, nothing where the bytes are that already. `latin1_fallback`: what kAuto means for bytes that are
/// not UTF-8. DataError names the line of the first undecodable byte.
std::optional<std::string> decode_bytes(const std::string& file, std::string_view bytes, FileEncoding encoding,
                                        bool latin1_fallback);

}  // namespace tessera::data
