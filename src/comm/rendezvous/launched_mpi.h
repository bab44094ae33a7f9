#pragma once
// Ranks that mpirun, or srun with PMI, has started: MPI has joined them, so they need no other place to meet.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rank_environment.h"
#include "base/tcp.h"
#include "comm/hosts/transport_mpi.h"

namespace tessera::comm {

/// Collective among all ranks. Null where bytes move through gloo: TESSERA_TRANSPORT says so, or says nothing and the
/// ranks were started by something else. ConfigError where MPI cannot be had.
std::shared_ptr<MpiSession> launched_mpi(const RankEnvironment& environment, std::chrono::milliseconds timeout);

/// Collective. The name of rank 0's host, at some port: what leads there leads to the others.
Endpoint towards_rank_0(MpiSession& mpi);

/// Collective: the texts of all ranks, by rank. CommError names one whose text is not genuine.
std::vector<std::string> exchange_genuine_texts(MpiSession& mpi, const std::string& mine,
                                                const std::function<bool(int rank, const std::string& text)>& genuine);

}  // namespace tessera::comm
