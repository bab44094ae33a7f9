#include "base/held_name.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {

HeldName::HeldName(std::string path, int descriptor) : path_(std::move(path)) {
  struct stat info{};
  if ((descriptor < 0 ? ::stat(path_.c_str(), &info) : ::fstat(descriptor, &info)) != 0)
    throw CheckpointError(fmt::format("cannot look at '{}': {}", path_, std::strerror(errno)), path_);
  device_ = info.st_dev;
  inode_ = info.st_ino;
}

std::string HeldName::loss() const {
  struct stat info{};
  // Other failures, such as a server that does not answer, say nothing of the file.
  if (::stat(path_.c_str(), &info) != 0) return errno == ENOENT || errno == ENOTDIR ? "was removed" : "";
  return info.st_dev == device_ && info.st_ino == inode_ ? "" : "was replaced by another file";
}

void HeldName::check() const {
  const std::string what = loss();
  if (what.empty()) return;
  throw CheckpointError(
      fmt::format("'{}' {} while this run was writing it; what it writes is lost. Start it again", path_, what), path_);
}

}  // namespace tessera
