#pragma once
// Rates and times, as a user writes them.
#include <string>

namespace tessera::estimate {

/// A second's bytes: "25GB/s", "3GiB/s", "100Gbit/s". ConfigError names the flag, what was found and the forms.
double parse_byte_rate(const std::string& text, const std::string& flag);
/// "1.5TFLOP/s", "224GFLOP/s".
double parse_flop_rate(const std::string& text, const std::string& flag);
/// Seconds: "5us", "1.5ms", "0.1s".
double parse_seconds(const std::string& text, const std::string& flag);

/// "13.2 GB/s" and "1.5 TFLOP/s" by their units.
std::string rate_text(double rate, const std::string& unit);

}  // namespace tessera::estimate
