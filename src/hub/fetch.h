#pragma once
// Repositories as folders on this machine.
#include <functional>
#include <string>
#include <vector>

#include "hub/name.h"
#include "hub/settings.h"

namespace tessera::hub {

/// Which files are wanted. `files`: all that the revision has; `folder`: where those lie that are here. Asked again
/// after each download, until it names nothing new: an index says which other files there are.
using Selection =
    std::function<std::vector<std::string>(const std::vector<std::string>& files, const std::string& folder)>;

struct Wanted {
  Selection select;
  std::vector<std::string> may_lack = {};  // names that others ask for: the cache notes which of them there are not
};

/// The folder of the revision's snapshot in the cache, with the chosen files; downloads those that are not there. Of
/// processes that ask at the same time one downloads and the others wait. Where the Hub may not be asked or does not
/// answer, what the cache has must do. DataError says what is missing, why, and the remedy.
std::string fetch(const RepositoryName& name, const Wanted& wanted, const Settings& settings);

}  // namespace tessera::hub
