#pragma once
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace tessera::test {

/// While it lives, the system lets this process start so many threads, and refuses the next.
class FewThreads {
 public:
  explicit FewThreads(int allowed) {
    constexpr rlim_t kStackBytes = rlim_t{1} << 30;
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(::getpagesize()) + kStackBytes / 2;
    ::getrlimit(RLIMIT_AS, &limit_);
    ::pthread_getattr_default_np(&attributes_);
    pthread_attr_t large = attributes_;
    ::pthread_attr_setstacksize(&large, kStackBytes);
    ::pthread_setattr_default_np(&large);
    const rlimit few{bytes + static_cast<rlim_t>(allowed) * kStackBytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_AS, &few);
  }
  ~FewThreads() {
    ::setrlimit(RLIMIT_AS, &limit_);
    ::pthread_setattr_default_np(&attributes_);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  rlimit limit_{};
  pthread_attr_t attributes_{};
};

}  // namespace tessera::test
