#pragma once
#include <fcntl.h>
#include <sys/resource.h>

#include "base/descriptor.h"

namespace tessera::test {

/// While it lives, this process may open so many files more.
class FewFiles {
 public:
  explicit FewFiles(rlim_t more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Descriptor lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit few{static_cast<rlim_t>(lowest.get()) + more, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace tessera::test
