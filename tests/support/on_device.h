#pragma once
#include "support/fake_device.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::testing {

/// A rank that is a thread needs a device of its own: backward runs in one thread for each.
inline fsdp::FsdpOptions on_device(fsdp::FsdpOptions options, const comm::Communicator& group) {
  options.device = test::fake_device(group.rank());
  return options;
}

}  // namespace tessera::testing
