#pragma once
// Ranks as real processes: this test program, started again with the name of a body.
#include <string>
#include <vector>

namespace tessera::comm::testing {

struct Job {
  std::string body;
  int size = 2;
  std::vector<std::string> environment = {};  // "NAME=value"
  int started = -1;                           // ranks that are started; -1: all
  std::vector<int> hosts = {};                // ranks on each of several hosts, which this machine plays; empty: one
};
/// Starts the ranks and returns their wait statuses.
std::vector<int> run_processes(const Job& job);

/// Runs a body if this process is a rank of a job; -1 if it is not, else its exit status.
int run_as_rank();

}  // namespace tessera::comm::testing
