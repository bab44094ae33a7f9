#pragma once
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::tasks {

/// Collective: where folders or files lie in snapshots of the Hub's cache, all ranks have got the same commits.
/// DataError on all ranks else: a repository that changed while they asked would train as many models as it had
/// commits.
void require_same_snapshot(const std::vector<std::string>& paths, comm::Communicator& group);

}  // namespace tessera::tasks
