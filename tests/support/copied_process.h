#pragma once
// For processes that fork has made, and that go on as if exec had started them.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::test {

/// Of a process that others copy: locks of threads that are not copied stay closed.
inline bool has_other_threads(pid_t process) {
  std::size_t threads = 0;
  std::error_code code;
  for (std::filesystem::directory_iterator at("/proc/" + std::to_string(process) + "/task", code), end;
       !code && at != end; at.increment(code)) {
    ++threads;
  }
  return threads != 1;
}

inline void close_what_exec_closes() {
  DIR* folder = ::opendir("/proc/self/fd");
  std::vector<int> found;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder) && (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0)
      found.push_back(fd);
  }
  ::closedir(folder);
  for (const int fd : found) ::close(fd);
}

}  // namespace tessera::test
