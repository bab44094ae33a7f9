#pragma once
// Who am I, according to whoever started this process: torchrun's names (our launcher sets them too), else Open MPI's,
// else PMI's (MPICH, Intel MPI), else SLURM's.
#include <chrono>
#include <string>

namespace tessera::comm {

struct RankEnvironment {
  bool found = false;
  std::string family;  // which variables were found, for messages
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = -1;  // -1: not said
  /// Equal for all ranks of one job on one host, different between jobs as far as the environment tells.
  std::string job_key;
  /// SLURM's job and step, "7.0", where srun has started the ranks: equal on all hosts. Otherwise empty.
  std::string slurm_step = {};
};

/// Throws ConfigError where the variables contradict each other.
RankEnvironment read_rank_environment();

/// TESSERA_COMM_TIMEOUT_S, which is stronger where it is set. ConfigError for what is no positive number of seconds.
std::chrono::milliseconds operation_timeout(std::chrono::milliseconds otherwise);

/// How long ranks wait for each other to meet: `init`, or what an operation may take, where that is less. At least 10
/// s: ranks do not start at the same moment.
std::chrono::milliseconds meeting_timeout(std::chrono::milliseconds init, std::chrono::milliseconds operation);

/// Of the environment; empty where it is not set.
std::string variable(const char* name);

}  // namespace tessera::comm
