#pragma once
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// Maps `size_bytes` of the descriptor (shared), or of new zeroed memory if it is -1. The descriptor may be closed
/// afterwards. Throws std::system_error.
std::shared_ptr<SharedRegion> map_memory(std::int64_t size_bytes, int descriptor = -1);

}  // namespace tessera::comm
