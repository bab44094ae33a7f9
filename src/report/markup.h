#pragma once
// Pieces of HTML and SVG that are well-formed XML, too.
#include <string>
#include <string_view>

namespace tessera::report {

/// Of the page's palette; what has more of a kind begins again.
inline constexpr int kColors = 10;

/// Text between tags or quotes.
std::string escaped(std::string_view text);

/// As few digits as say it: "0.0001", "1.5e-5", "12,500".
std::string short_number(double value);

}  // namespace tessera::report
