#pragma once
// Who am I, according to whoever started this process: torchrun's names (our launcher sets them too), else Open MPI's,
// else PMI's (MPICH, Intel MPI), else SLURM's.
#include <string>

namespace tessera {

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

/// Whether somebody has started this process as one of several, by the same variables; contradictions are not looked
/// for.
bool is_one_of_several();

}  // namespace tessera
