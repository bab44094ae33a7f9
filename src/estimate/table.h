#pragma once
#include <string>
#include <vector>

namespace tessera::estimate {

/// 1536 -> "1.5 KB": the largest unit (of 1024 each) with at most two digits behind the point, as accelerate writes it.
std::string bytes_text(double bytes);

/// A table in a frame, its title across the top, everything centred. All rows are as long as the header.
std::string framed_table(const std::string& title, const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::estimate
