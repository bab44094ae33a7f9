#include "unit/comm/processes.h"

#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

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
    std::vector<char*> pointers;
    for (std::string& variable : environment) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe")};
    if (job.in_namespaces) {
      command.insert(command.begin(), {"/usr/bin/env", "PATH=/usr/sbin:/sbin:/usr/bin:/bin", "ip", "netns", "exec",
                                       test::Namespaces::name(place.host)});
    }
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t child = -1;
    if (posix_spawn(&child, arguments[0], nullptr, nullptr, arguments.data(), pointers.data()) != 0)
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
  const char* expected = std::getenv("EXPECT_ERROR");
  const char* other = std::getenv("OTHER_SECRET");
  if (other != nullptr && std::string(other) == std::getenv("RANK")) {
    ::setenv("TESSERA_SECRET", "a secret that nobody else has", 1);
  }
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
    return expected == nullptr ? 0 : 1;
  } catch (const std::exception& error) {
    if (expected != nullptr && std::string(error.what()).find(expected) != std::string::npos) return 0;
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK"), error.what());
    return 1;
  }
}

}  // namespace tessera::comm::testing
