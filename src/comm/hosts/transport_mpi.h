#pragma once
// MPI as a Transport, for ranks that mpirun, or srun with PMI, has started.
//
// Note [MPI]
// What it does not do, and who does it here:
//  - it moves bytes only while somebody calls it: a thread asks again and again (with pauses, for the cores belong to
//    the computation), and for a while after the last message, for what MPI has taken from us and not sent yet;
//  - it says nothing of a process that has ended, or waits for it for ever, inside a call: Open MPI 4.1 over TCP closes
//    the connection, and what it then tells the others of needs a lock that it holds. So only that thread is ever in
//    MPI, nobody waits for a call without a limit, and the Wire's control connections tell who has ended;
//  - a message cannot be taken back reliably: after one was given up, this process calls MPI no more;
//  - groups of ranks would be made collectively: here they share one communicator, and a group has tags of its own, on
//    whose number its ranks agree.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/hosts/mpi_library.h"
#include "comm/hosts/transport.h"

namespace tessera::comm {

class MpiSession;

/// Collective among all ranks, once in a process; MPI is finished at exit(). ConfigError where MPI's processes are not
/// the `size` ranks; CommError after the timeout.
std::shared_ptr<MpiSession> start_mpi(std::unique_ptr<MpiLibrary> library, int rank, int size,
                                      std::chrono::milliseconds timeout);

/// Collective, where it was started: before the end of a process that does not call exit(). Open MPI's mpirun takes it
/// for a failure otherwise. `status`: the process's; a rank that has failed does not wait for the others.
void finish_mpi(int status);

/// Collective: the texts of all ranks, by rank. CommError after the timeout of start_mpi().
std::vector<std::string> exchange_texts(MpiSession& session, const std::string& mine);

std::unique_ptr<Engine> make_mpi_engine(std::shared_ptr<MpiSession> session);

}  // namespace tessera::comm
