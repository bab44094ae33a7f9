#include "unit/comm/processes.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "unit/comm/bodies.h"

namespace tessera::comm::testing {

std::vector<int> run_processes(const Job& job) {
  static int port = 0;
  ++port;
  std::vector<pid_t> children;
  const int started = job.started < 0 ? job.size : job.started;
  for (int rank = 0; rank < started; ++rank) {
    std::vector<std::string> environment = {"TESSERA_TEST_BODY=" + job.body,
                                            "RANK=" + std::to_string(rank),
                                            "WORLD_SIZE=" + std::to_string(job.size),
                                            "LOCAL_WORLD_SIZE=" + std::to_string(job.size),
                                            "MASTER_PORT=" + std::to_string(port),
                                            "TESSERA_JOB_ID=test" + std::to_string(getpid()),
                                            "OMP_NUM_THREADS=1"};
    environment.insert(environment.end(), job.environment.begin(), job.environment.end());
    std::vector<char*> pointers;
    for (std::string& variable : environment) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    char self[] = "/proc/self/exe";
    char* arguments[] = {self, nullptr};
    pid_t child = -1;
    if (posix_spawn(&child, self, nullptr, nullptr, arguments, pointers.data()) != 0)
      unexpected(__FILE__, __LINE__, "spawn");
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

int run_as_rank() {
  const char* body = std::getenv("TESSERA_TEST_BODY");
  if (body == nullptr) return -1;
  try {
    const auto world = connect({.init_timeout = std::chrono::seconds(std::getenv("SHORT_INIT") ? 1 : 60)});
    const std::string name = body;
    if (name == "Suite") {
      for (const auto& [title, run] : bodies()) {
        try {
          run(world);
        } catch (const std::exception& error) {
          throw std::runtime_error(title + ": " + error.what());
        }
      }
    } else {
      faults().at(name)(world);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK"), error.what());
    return 1;
  }
}

}  // namespace tessera::comm::testing
