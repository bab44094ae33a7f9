#pragma once
// Quantities as people read them. As many digits as a reader needs.
#include <string>

namespace tessera {

/// "512 bytes", "1.5 KiB", "62.75 MiB", "512.0 MiB": a size in bytes, as accelerate prints it.
std::string bytes_text(double bytes);
/// The same of a size in MiB.
std::string mib_text(double mib);

/// "40 us", "12.5 ms", "2.5 s", "4 min 10 s", "3 h 5 min".
std::string duration_text(double seconds);

}  // namespace tessera
