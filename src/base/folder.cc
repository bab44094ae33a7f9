#include "base/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/descriptor.h"
#include "tessera/base/error.h"

namespace tessera {

std::string parent_folder(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void flush_folder(const std::string& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0 && ::fsync(fd.get()) == 0) return;
  if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS) return;
  if (fd.get() < 0 && errno == EACCES) return;  // one that may be written to but not listed
  throw CheckpointError(fmt::format("cannot flush the folder '{}' to disk: {}", folder, std::strerror(errno)), folder);
}

}  // namespace tessera
