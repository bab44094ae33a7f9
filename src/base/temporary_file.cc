#include "base/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void remove_orphans(const std::string& path) {
  const std::string start = fs::path(path).filename().string() + ".tmp.";
  std::error_code code;
  for (fs::directory_iterator entry(parent_folder(path), code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(start) || name.find_first_not_of("0123456789.", start.size()) != std::string::npos) continue;
    const Descriptor orphan(::open(entry->path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (orphan.get() >= 0 && ::flock(orphan.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
}

/// False where somebody took it for an orphan before it was held. Where the disk knows no locks nobody takes any.
bool hold(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) continue;
  struct stat about{};
  return ::fstat(descriptor, &about) != 0 || about.st_nlink > 0;
}

}  // namespace

TemporaryFile open_temporary(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  remove_orphans(path);
  for (;;) {  // unique among threads, and hosts that share the folder's disk closely enough: O_EXCL settles the rest
    TemporaryFile out{fmt::format("{}.tmp.{}.{}", path, ::getpid(), counter.fetch_add(1)), Descriptor()};
    out.descriptor.reset(::open(out.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    const int error = errno;
    if (out.descriptor.get() >= 0 && !hold(out.descriptor.get())) continue;
    if (out.descriptor.get() < 0 && error == EEXIST) continue;
    errno = error;
    return out;
  }
}

}  // namespace tessera
