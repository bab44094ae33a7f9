#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// The region itself, pinned for the device as long as it lives (tensor/pinned_memory.h). Null stays null.
std::shared_ptr<SharedRegion> pinned(std::shared_ptr<SharedRegion> region, c10::Device device);

}  // namespace tessera::comm
