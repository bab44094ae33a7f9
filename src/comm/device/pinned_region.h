#pragma once
#include <c10/core/Device.h>

#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// The region itself, whose pages stay where they are as long as it lives, so that the device's copy engines reach them
/// (cudaHostRegister). Where that is refused, as by a limit on locked memory, copies are slower, and the log says so.
/// Null stays null.
std::shared_ptr<SharedRegion> pinned(std::shared_ptr<SharedRegion> region, c10::Device device);

}  // namespace tessera::comm
