#pragma once
// A file under a temporary name beside the one that it is to become.
#include <string>

#include "base/descriptor.h"

namespace tessera {

struct TemporaryFile {
  std::string name;
  Descriptor descriptor;  // for writing; -1: it could not be made, errno says why
};

/// Makes `path`.tmp.PID.N, which is held (flock) until the descriptor is closed: rename it before. Removes those of
/// `path` that nobody holds any more, whose writers were killed. SIGINT, SIGTERM and SIGHUP, where they would end the
/// process, remove the last 64 files first: the first call installs that.
TemporaryFile open_temporary(const std::string& path);

}  // namespace tessera
