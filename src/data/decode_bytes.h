#pragma once
// Bytes of a text file -> UTF-8.
#include <optional>
#include <string>
#include <string_view>

#include "data/text_pair.h"

namespace tessera::data {

std::string latin1_to_utf8(std::string_view bytes);

/// The text in UTF-8, nothing where the bytes are that already. DataError names the line of the first byte that is not
/// kUtf8.
std::optional<std::string> decode_bytes(const std::string& file, std::string_view bytes, FileEncoding encoding);

}  // namespace tessera::data
