#pragma once
// Ranks as real processes: copies of this test program, or the program started again, with the name of a body.
#include <functional>
#include <string>
#include <vector>

namespace tessera::comm::testing {

struct Job {
  std::string body;
  int size = 2;
  std::vector<std::string> environment = {};  // "NAME=value"
  int started = -1;                           // ranks that are started; -1: all
  std::vector<int> hosts = {};                // ranks on each of several hosts, which this machine plays; empty: one
  bool in_namespaces = false;                 // each host is one of test::Namespaces, which must exist
  std::function<void(int port)> before_last = {};  // called before the last rank starts, with MASTER_PORT
};
/// Starts the ranks and returns their wait statuses.
std::vector<int> run_processes(const Job& job);

/// The same ranks started by this mpirun, which leaves the others alone when one ends; no host is missing, nor in a
/// namespace. Where a rank has ended by a signal its status is -1.
std::vector<int> run_under_mpirun(const std::string& mpirun, const Job& job);

/// Variables for ranks: EXPECT_ERROR=TEXT is a success where connecting fails with an error that holds the text;
/// OTHER_SECRET=RANK gives one rank a TESSERA_SECRET of its own, OTHER_RESTART=RANK a TORCHELASTIC_RESTART_COUNT;
/// SHORT_INIT waits a second for the others.
///
/// MPIRUN_HOSTS=1,2: how many of mpirun's processes are on each host; STATUS_FOLDER: where each leaves its status.
///
/// Runs a body if this process is a rank of a job; -1 if it is not, else its exit status.
int run_as_rank();

}  // namespace tessera::comm::testing
