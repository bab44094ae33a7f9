#pragma once
// Who shares what: the ranks of `shard` hold the slices of one copy of the model, the ranks of `replicate` equal slices
// of different copies. `world` is both together.
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

struct Mesh {
  std::shared_ptr<comm::Communicator> world, shard, replicate;  // replicate: null when there is one copy
};

}  // namespace tessera::fsdp
