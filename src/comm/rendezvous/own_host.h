#pragma once
#include <string>

namespace tessera::comm {

/// Equal for two processes that can share memory: under one kernel, in one network. Where a launcher says that they are
/// on different nodes (GROUP_RANK, SLURM_NODEID), it is believed.
std::string own_host();

}  // namespace tessera::comm
