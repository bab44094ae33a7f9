#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hub {

/// A revision of a repository.
struct Listing {
  std::string commit;
  std::vector<std::string> files;  // sorted paths, each of them safe (name.h)
};

/// What the Hub answers when it is asked for a revision: {"sha": "...", "siblings": [{"rfilename": "..."}]}. DataError
/// says what is wrong with it.
Listing parse_listing(std::string_view json);

}  // namespace tessera::hub
