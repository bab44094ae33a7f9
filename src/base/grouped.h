#pragma once
#include <cstdint>
#include <string>

namespace tessera {

/// 1234567 -> "1,234,567", as Python's format(n, ",d").
std::string grouped(std::int64_t n);

}  // namespace tessera
