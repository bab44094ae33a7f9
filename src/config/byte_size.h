#pragma once
#include <cstdint>
#include <string>

namespace tessera::config {

/// "24GB" (10^9), "20GiB" (2^30), "512 MiB", "1.5TiB", or a plain number of bytes, in any case. ConfigError names the
/// flag, what was found and the forms that are read.
std::int64_t parse_byte_size(const std::string& text, const std::string& flag);

}  // namespace tessera::config
