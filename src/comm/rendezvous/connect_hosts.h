#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/rank_environment.h"
#include "tessera/comm/communicator.h"

namespace tessera::comm {

struct HostsRendezvous {
  RankEnvironment environment;
  int connection = 0;  // counts the connect() calls of this process
  std::chrono::milliseconds init_timeout, op_timeout;
};

/// Collective: ranks that may be on several hosts meet at MASTER_ADDR:MASTER_PORT (default port 29500; where srun has
/// started them, the step's first node and port_of_step()), or through the MPI that has started them, learn who shares
/// a host, and connect.
std::shared_ptr<Communicator> connect_hosts(const HostsRendezvous& rendezvous);

/// The first node of SLURM's compact list: "gpu[03-05,9],x1" -> "gpu03". Nothing where it is no such list.
std::optional<std::string> first_node(const std::string& node_list);

/// Where a step of SLURM, "7.0", meets: in 20000 to 29999, for steps and jobs that share a node may run at once.
int port_of_step(const std::string& slurm_step);

/// Launchers other than ours (SLURM, mpirun --bind-to none) may leave every rank all cores, and containers more cores
/// than time on them: with a thread for each core, threads would mostly wait for each other. So libtorch gets the
/// rank's share. Whoever sets OMP_NUM_THREADS knows better.
void share_cores(int cores, int ranks);

/// Collective: the ranks of one host. `first_rank`: what its rank 0 is called in the world.
std::shared_ptr<Communicator> connect_one_host(int rank, int size, int first_rank, const std::string& job_key,
                                               const HostsRendezvous& rendezvous);

}  // namespace tessera::comm
