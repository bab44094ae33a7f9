#pragma once
// MPI as a Transport, for ranks that mpirun, or srun with PMI, has started.
//
// Note [MPI]
// What it does not do, and who does it here:
//  - it moves bytes only while somebody calls it: whoever waits asks again and again, with pauses, for the cores belong
//    to the computation; a thread asks when nobody waits, for what MPI has taken from us and not sent yet;
//  - threads take turns in it, as every MPI allows;
//  - it says nothing of a process that has ended, or waits for it for ever, even inside a call (Open MPI 4.1 over TCP):
//    the Wire's control connections tell, and nobody waits long for a thread that is in MPI;
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

/// Collective among all ranks, once in a process; MPI is finished at exit(), until when the result must live.
/// ConfigError where MPI's processes are not the `size` ranks; CommError after the timeout.
std::shared_ptr<MpiSession> start_mpi(std::unique_ptr<MpiLibrary> library, int rank, int size,
                                      std::chrono::milliseconds timeout);

/// Collective, where it was started: before the end of a process that does not call exit(). Open MPI's mpirun takes it
/// for a failure otherwise. `status`: the process's; a rank that has failed does not wait for the others.
void finish_mpi(int status);

/// Collective: the texts of all ranks, by rank.
std::vector<std::string> exchange_texts(MpiSession& session, const std::string& mine);

std::unique_ptr<Engine> make_mpi_engine(std::shared_ptr<MpiSession> session);

}  // namespace tessera::comm
