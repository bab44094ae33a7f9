#include "base/env.h"

#include <pwd.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> variables = {
      {"TESSERA_LOG_LEVEL", "info, warning, error or silent: what tessera launch says at least (default: info)"},
      {"TESSERA_CPU_LEVEL",
       "plain, avx2, avx512, avx512_bf16 or amx: the highest instructions that kernels use (default: all there are)"},
      {"TESSERA_DEVICE_KERNELS",
       "kernels for GPUs: a file in place of libtessera_cuda.so beside the program, or none (libtorch's operators "
       "compute)"},
      {"TESSERA_CHAT_HISTORY",
       "the file of what was typed into tessera chat, or none (default: tessera/chat_history in XDG_STATE_HOME)"},
      {"HF_HOME",
       "Hugging Face's folder: accelerate/default_config.yaml, hub and token below it (default: ~/.cache/huggingface)"},
      {"HF_HUB_CACHE", "the cache of models and data sets (default: hub in HF_HOME)"},
      {"HUGGINGFACE_HUB_CACHE", "the same, where HF_HUB_CACHE is not set"},
      {"HF_ENDPOINT", "address of the Hub (default: https://huggingface.co)"},
      {"HF_TOKEN", "what the Hub is shown for private and gated repositories; goes to no other address", true},
      {"HUGGING_FACE_HUB_TOKEN", "the same, where HF_TOKEN is not set", true},
      {"HF_TOKEN_PATH", "a file with the token (default: token in HF_HOME)"},
      {"HF_HUB_OFFLINE", "1: nothing is downloaded, the cache must do; likewise TRANSFORMERS_OFFLINE"},
      {"TRANSFORMERS_OFFLINE", "the same"},
      {"XDG_CACHE_HOME", "the folder that stands for ~/.cache"},
      {"XDG_STATE_HOME", "the folder that stands for ~/.local/state"},
      {"TERM", "dumb: progress is printed line by line, and tessera chat reads lines without keys that edit them"},
      {"HOME", "where ~ is (default: what the system has on record for the user)"},
      {"PATH", "where `tessera launch PROGRAM` looks"},
      {"RANK", "this process's rank (torchrun's name; set by tessera launch)"},
      {"WORLD_SIZE", "number of ranks"},
      {"LOCAL_RANK", "rank within this machine"},
      {"LOCAL_WORLD_SIZE", "ranks on this machine"},
      {"MASTER_ADDR", "address of rank 0"},
      {"MASTER_PORT", "port of rank 0 (default: 29500; under srun a port of the job and step)"},
      {"GROUP_RANK", "number of this machine"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True where torchrun listens at MASTER_ADDR:MASTER_PORT"},
      {"TESSERA_JOB_ID", "tells jobs on one machine apart where the launcher does not"},
      {"TESSERA_COMM_TIMEOUT_S", "seconds without progress after which an operation of several ranks fails (1800)"},
      {"TESSERA_SECRET",
       "what ranks of several hosts prove to each other, the same random text for all (`openssl rand -hex 32`)", true},
      {"TESSERA_SOCKET_IFNAME", "the interface between hosts, or a list of which the first that is there counts"},
      {"GLOO_SOCKET_IFNAME", "the same, where TESSERA_SOCKET_IFNAME is not set"},
      {"TESSERA_ADDRESS", "the address of this host that the others use (default: the one on the way to MASTER_ADDR)"},
      {"TESSERA_PORTS", "refused: the system chooses ports (net.ipv4.ip_local_port_range limits them)"},
      {"TESSERA_TRANSPORT",
       "gloo or mpi: what moves bytes between hosts (default: mpi under mpirun and srun with PMI)"},
      {"TESSERA_DEVICE_TRANSPORT",
       "nccl or host: what moves tensors between GPUs (default: nccl; host memory where ranks share a GPU)"},
      {"TESSERA_SHARE_GPUS", "1: ranks of a host may be more than its GPUs and take them in turns, for trials"},
      {"TESSERA_KEEPALIVE_S", "seconds after which a host that does not answer is taken for lost (5)"},
      {"OMPI_COMM_WORLD_RANK", "rank under mpirun (Open MPI); likewise _SIZE, _LOCAL_RANK, _LOCAL_SIZE"},
      {"PMI_RANK", "rank under mpirun (MPICH and others); likewise PMI_SIZE"},
      {"SLURM_PROCID",
       "rank under srun; likewise SLURM_STEP_NUM_TASKS (else SLURM_NTASKS), SLURM_LOCALID, SLURM_NODEID, "
       "SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST"},
      {"OMP_NUM_THREADS", "threads of each rank (set by tessera launch to cores / ranks)"},
      {"OMP_WAIT_POLICY", "active or passive: what threads do that wait (not set: they look for a moment, then sleep)"},
      {"GOMP_SPINCOUNT", "how often they look (set by tessera unless one of the two is)"},
      {"LRU_CACHE_CAPACITY",
       "kinds of matrix products that each thread keeps ready (set by tessera to 64 unless it is set); likewise "
       "ONEDNN_PRIMITIVE_CACHE_CAPACITY"},
      {"CUDA_VISIBLE_DEVICES", "GPUs that ranks may use (set by tessera launch from gpu_ids)"},
      {"ACCELERATE_USE_FSDP",
       "what the launch decided; likewise ACCELERATE_* and FSDP_*, one for each key of the file"},
      {"ACCELERATE_MIXED_PRECISION", "no, bf16 or fp16"},
  };
  return variables;
}

std::optional<std::string> environment(const std::string& name) {
  bool listed = false;
  for (const EnvironmentVariable& variable : environment_variables()) listed = listed || name == variable.name;
  TESSERA_CHECK(listed, "environment variable " + name + " is read but not documented");
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

namespace {

/// HOME, else what the system has on record for the user, as shells and Python do.
std::string home() {
  if (const auto set = environment("HOME")) return *set;
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : ".";
}

}  // namespace

std::string expanded_path(const std::string& path) {
  std::string out;
  std::size_t at = 0;
  if (path == "~" || path.starts_with("~/")) {
    out = home();
    at = 1;
  }
  const auto is_word = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  while (at < path.size()) {
    const bool braces = path.compare(at, 2, "${") == 0;
    const std::size_t begin = at + (braces ? 2 : 1);
    std::size_t end = begin;
    while (end < path.size() && is_word(path[end])) ++end;
    const bool is_name = path[at] == '$' && end > begin && (!braces || (end < path.size() && path[end] == '}'));
    const char* value = is_name ? std::getenv(path.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      out += path[at++];
    } else {
      out += value;
      at = end + (braces ? 1 : 0);
    }
  }
  return out;
}

std::string huggingface_home() {
  if (const auto home = environment("HF_HOME")) return expanded_path(*home);
  return expanded_path(environment("XDG_CACHE_HOME").value_or("~/.cache") + "/huggingface");
}

}  // namespace tessera
