#include "data/cache_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

[[noreturn]] void fail_locking(const std::string& name, const char* what) {
  throw CheckpointError(
      fmt::format("{}: cannot {} this file in the cache of data sets: {}; choose another folder, with "
                  "--dataset_cache_dir for tokenised rows or the environment variable XDG_CACHE_HOME for all",
                  name, what, std::strerror(errno)),
      name);
}

}  // namespace

CacheLock::CacheLock(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), code);
  const std::string name = path + ".lock";
  descriptor_.reset(::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  if (descriptor_.get() < 0) fail_locking(name, "create");
  while (::flock(descriptor_.get(), LOCK_EX) != 0)
    if (errno != EINTR) fail_locking(name, "lock");
}

}  // namespace tessera::data
