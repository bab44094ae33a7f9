#pragma once
// Numbers as Python's format specifications and % conversions write them.
#include <string>

#include "chat/jinja/value.h"

namespace tessera::chat {

struct NumberFormat {
  char type = '\0';  // d b o x X n, e E f F g G %, or none
  int precision = -1;
  bool alternate = false;  // '#'
  char grouping = '\0';    // ',' or '_'
  std::int64_t zeros = 0;  // the least length, reached by zeros in front that are grouped as well
};

/// The digits without a sign (of the absolute value).
std::string format_integer(const Integer& value, const NumberFormat& format);
std::string format_float(double value, const NumberFormat& format);

}  // namespace tessera::chat
