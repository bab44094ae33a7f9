#include "base/rank_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {
namespace {

struct Family {
  const char *name, *rank, *world_size, *local_rank, *local_world_size;
};

constexpr const char* kStepTasks = "SLURM_STEP_NUM_TASKS";

constexpr Family kFamilies[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};

// Each narrows down the job; what is not set is left out.
constexpr const char* kJobKeys[] = {"MASTER_PORT",    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                    "TESSERA_JOB_ID", "PMIX_NAMESPACE",      "PMI_JOBID",
                                    "SLURM_JOB_ID",   "SLURM_STEP_ID"};

const char* value_of(const char* name) {
  const char* value = *name == 0 ? nullptr : std::getenv(name);
  return value == nullptr || *value == 0 ? nullptr : value;
}

std::optional<int> number_of(const char* name) {
  const char* value = value_of(name);
  if (value == nullptr) return std::nullopt;
  int number = 0;
  const char* end = value + std::strlen(value);
  const auto [stop, error] = std::from_chars(value, end, number);
  if (error != std::errc() || stop != end || number < 0) {
    throw ConfigError(
        fmt::format("The environment variable {} must be a number of at least 0, it is '{}'.", name, value), name);
  }
  return number;
}

std::optional<int> either(const char* name, const char* otherwise) {
  const auto number = number_of(name);
  return number ? number : number_of(otherwise);
}

/// SLURM starts tasks in steps (srun). A batch script and salloc's shell have the job's variables, too, of which
/// SLURM_PROCID may be one: they are single processes, not one of its tasks.
bool is_task_of_slurm() {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID", kStepTasks})
    if (value_of(name) != nullptr) return true;
  const int tasks = number_of("SLURM_NTASKS").value_or(1);
  if (tasks > 1 && value_of("SLURM_PROCID") != nullptr) {
    throw ConfigError(
        fmt::format("this job of SLURM has {} tasks (SLURM_NTASKS), and this process is its script, not one "
                    "of them: start it with srun, or with tessera launch; or unset SLURM_NTASKS for a "
                    "single process",
                    tasks),
        "SLURM_NTASKS");
  }
  return false;
}

std::string job_key() {
  std::string key;
  for (const char* name : kJobKeys) {
    if (const char* value = value_of(name)) key += fmt::format("{}={};", name, value);
  }
  // Without any of them, ranks that one launcher started on this host still share their parent.
  return key.empty() ? fmt::format("parent={}", getppid()) : key;
}

}  // namespace

RankEnvironment read_rank_environment() {
  RankEnvironment result;
  for (const Family& family : kFamilies) {
    const bool is_slurm = std::string_view(family.name) == "SLURM";
    if (is_slurm && !is_task_of_slurm()) continue;
    const auto rank = number_of(family.rank), size = either(is_slurm ? kStepTasks : "", family.world_size);
    if (!rank && !size) continue;
    if (!rank || !size) {
      throw ConfigError(fmt::format("{} is set, {} is not: set both, or neither for a single process.",
                                    rank ? family.rank : family.world_size, rank ? family.world_size : family.rank),
                        rank ? family.world_size : family.rank);
    }
    if (*rank >= *size) {
      throw ConfigError(fmt::format("{}={} is not below {}={}.", family.rank, *rank, family.world_size, *size),
                        family.rank);
    }
    const auto local_size = number_of(family.local_world_size);
    if (local_size.value_or(0) > *size) {
      throw ConfigError(
          fmt::format("{}={} is more than {}={}.", family.local_world_size, *local_size, family.world_size, *size),
          family.local_world_size);
    }
    result = {
        true,     family.name, *rank, *size, number_of(family.local_rank).value_or(*rank), local_size.value_or(-1),
        job_key()};
    break;
  }
  // srun sets PMI's variables (--mpi=pmi2), too, but not those of the host.
  if ((result.family == "SLURM" || result.family == "PMI") && result.local_world_size < 0) {
    const auto nodes = either("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
    if (nodes || result.family == "SLURM") result.local_world_size = nodes.value_or(1) == 1 ? result.world_size : 0;
    result.local_rank = number_of("SLURM_LOCALID").value_or(result.local_rank);
    const char *job = value_of("SLURM_JOB_ID"), *step = value_of("SLURM_STEP_ID");
    if (step != nullptr) result.slurm_step = fmt::format("{}.{}", job == nullptr ? "" : job, step);
  }
  return result;
}

bool is_one_of_several() {
  return std::any_of(std::begin(kFamilies), std::end(kFamilies), [](const Family& family) {
    return value_of(std::string_view(family.name) == "SLURM" ? "SLURM_STEP_ID" : family.rank) != nullptr;
  });
}

}  // namespace tessera
