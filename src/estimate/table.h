#pragma once
#include <string>
#include <vector>

namespace tessera::estimate {

/// A table in a frame, its title across the top, everything centred. All rows are as long as the header.
std::string framed_table(const std::string& title, const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::estimate
