#pragma once
// Bytes of a text file -> UTF-8.
#include <string>

#include "data/text_pair.h"

namespace tessera::data {

/// A leading byte order mark is dropped. `latin1_fallback`: what kAuto means for bytes that are not UTF-8. DataError
/// names the line of the first undecodable byte.
std::string decode_bytes(const std::string& file, std::string bytes, FileEncoding encoding, bool latin1_fallback);

}  // namespace tessera::data
