#include "unit/comm/processes.h"

#include <ATen/Parallel.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "support/copied_process.h"
#include "support/namespaces.h"
#include "unit/comm/bodies.h"

namespace tessera::comm::testing {

namespace {

/// A port of this machine that nobody listens on now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, generic, size) != 0 || getsockname(fd, generic, &size) != 0) unexpected(__FILE__, __LINE__, "no port");
  close(fd);
  return ntohs(address.sin_port);
}

struct Place {
  int host = 0, local_size = 1;
};
Place place_of(const Job& job, int rank) {
  Place place{0, job.size};
  for (std::size_t h = 0; h < job.hosts.size(); ++h) {
    place = {static_cast<int>(h), job.hosts[h]};
    if (rank < job.hosts[h]) break;
    rank -= job.hosts[h];
  }
  return place;
}

pid_t start(std::vector<std::string> command, std::vector<std::string> environment) {
  std::vector<char*> arguments, variables;
  for (std::string& word : command) arguments.push_back(word.data());
  for (std::string& variable : environment) variables.push_back(variable.data());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  pid_t child = -1;
  if (posix_spawn(&child, arguments[0], nullptr, nullptr, arguments.data(), variables.data()) != 0)
    unexpected(__FILE__, __LINE__, "spawn");
  return child;
}

/// A copy of this process that becomes a rank: libtorch is not loaded again, which takes 0.2 s of a core, nor taken
/// down.
pid_t copy(const std::vector<std::string>& environment) noexcept {
  const pid_t child = ::fork();
  if (child != 0) return child;
  test::close_what_exec_closes();
  ::clearenv();
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
  at::set_num_threads(1);
  std::_Exit(run_as_rank());
}

bool can_be_copied() {
#ifdef TESSERA_ADDRESS_SANITIZER
  return false;  // it looks at a process's end
#else
  return !test::has_other_threads(::getpid());
#endif
}

/// Mpirun's processes are all on this host: tells this one that it is on one of several.
void play_host_of_mpirun(const char* hosts) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (rank == nullptr) unexpected(__FILE__, __LINE__, "mpirun says no rank");
  Job job{.body = "", .hosts = {}};
  std::istringstream list(hosts);
  for (std::string one; std::getline(list, one, ',');) job.hosts.push_back(std::atoi(one.c_str()));
  const Place place = place_of(job, std::atoi(rank));
  const std::string local_size = std::to_string(place.local_size);
  ::setenv("GROUP_RANK", std::to_string(place.host).c_str(), 1);
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (std::getenv(name) != nullptr) ::setenv(name, local_size.c_str(), 1);
  }
}

int run_body(const std::string& body) {
  const char* expected = std::getenv("EXPECT_ERROR");
  const char* other = std::getenv("OTHER_SECRET");
  if (other != nullptr && std::string(other) == std::getenv("RANK")) {
    ::setenv("TESSERA_SECRET", "a secret that nobody else has", 1);
  }
  const char* restarted = std::getenv("OTHER_RESTART");
  if (restarted != nullptr && std::string(restarted) == std::getenv("RANK"))
    ::setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  try {
    const auto world = connect({.init_timeout = std::chrono::seconds(std::getenv("SHORT_INIT") ? 1 : 60)});
    if (body == "Suite") {
      for (const auto& [title, run] : bodies()) {
        try {
          run(world);
        } catch (const std::exception& error) {
          throw std::runtime_error(title + ": " + error.what());
        }
      }
    } else {
      (bodies().contains(body) ? bodies() : faults()).at(body)(world);
    }
    return expected == nullptr ? 0 : 1;
  } catch (const std::exception& error) {
    if (expected != nullptr && std::string(error.what()).find(expected) != std::string::npos) return 0;
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

std::vector<int> run_processes(const Job& job) {
  static int job_number = 0;
  const int port = job.hosts.empty() ? ++job_number : free_port();
  std::vector<pid_t> children;
  const int started = job.started < 0 ? job.size : job.started;
  for (int rank = 0; rank < started; ++rank) {
    if (rank + 1 == started && job.before_last) job.before_last(port);
    const Place place = place_of(job, rank);
    std::vector<std::string> environment = {
        "TESSERA_TEST_BODY=" + job.body,
        "RANK=" + std::to_string(rank),
        "WORLD_SIZE=" + std::to_string(job.size),
        "LOCAL_WORLD_SIZE=" + std::to_string(place.local_size),
        "GROUP_RANK=" + std::to_string(place.host),
        "MASTER_ADDR=" + (job.in_namespaces ? test::Namespaces::address(0) : "127.0.0.1"),
        "MASTER_PORT=" + std::to_string(port),
        "TESSERA_JOB_ID=test" + std::to_string(getpid()),
        "OMP_NUM_THREADS=1"};
    environment.insert(environment.end(), job.environment.begin(), job.environment.end());
    if (!job.in_namespaces && can_be_copied()) {
      children.push_back(copy(environment));
      continue;
    }
    std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe")};
    if (job.in_namespaces) {
      command.insert(command.begin(), {"/usr/bin/env", "PATH=/usr/sbin:/sbin:/usr/bin:/bin", "ip", "netns", "exec",
                                       test::Namespaces::name(place.host)});
    }
    children.push_back(start(std::move(command), std::move(environment)));
  }
  std::vector<int> statuses;
  for (pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

std::vector<int> run_under_mpirun(const std::string& mpirun, const Job& job) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("tessera_mpirun_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::string hosts;
  for (const int ranks : job.hosts) hosts += (hosts.empty() ? "" : ",") + std::to_string(ranks);
  std::vector<std::string> environment = {"TESSERA_TEST_BODY=" + job.body, "MPIRUN_HOSTS=" + hosts,
                                          "STATUS_FOLDER=" + folder.string(), "PATH=/usr/bin:/bin",
                                          "MASTER_ADDR=127.0.0.1",  // the way to each other
                                          "OMP_NUM_THREADS=1",
                                          // No shared memory between what plays hosts.
                                          "OMPI_MCA_btl=tcp,self", "UCX_TLS=tcp,self", "MPIR_CVAR_NOLOCAL=1",
                                          "OMPI_MCA_pml=ob1",  // else it looks for InfiniPath's device for 10 s
                                          "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                          "OMPI_MCA_rmaps_base_oversubscribe=1",
                                          "OMPI_MCA_hwloc_base_binding_policy=none"};
  environment.insert(environment.end(), job.environment.begin(), job.environment.end());
  const bool open_mpi = fs::canonical(mpirun).filename().string().find("hydra") == std::string::npos;
  const int size = std::accumulate(job.hosts.begin(), job.hosts.end(), 0);
  // A shell keeps from mpirun how its process has ended, and SIGUSR1 from the others, by which MPICH's tells of it.
  const pid_t launcher = start(
      {"/usr/bin/timeout", "-k", "5", "120", mpirun, open_mpi ? "--enable-recovery" : "-disable-auto-cleanup", "-n",
       std::to_string(size), "/bin/sh", "-c", "trap '' USR1; \"$0\"; exit 0", fs::read_symlink("/proc/self/exe")},
      environment);
  int status = -1;
  waitpid(launcher, &status, 0);
  std::vector<int> statuses;
  for (int rank = 0; rank < size; ++rank) {
    statuses.push_back(-1);
    std::ifstream(folder / std::to_string(rank)) >> statuses.back();
  }
  fs::remove_all(folder);
  return statuses;
}

int run_as_rank() {
  const char* body = std::getenv("TESSERA_TEST_BODY");
  if (body == nullptr) return -1;
  const char* hosts = std::getenv("MPIRUN_HOSTS");
  if (hosts == nullptr) return run_body(body);
  play_host_of_mpirun(hosts);
  const int status = run_body(body);
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  std::ofstream(std::string(std::getenv("STATUS_FOLDER")) + "/" + (rank ? rank : std::getenv("PMI_RANK"))) << status;
  return status;
}

}  // namespace tessera::comm::testing
