#include "base/open_files.h"

#include <sys/resource.h>

namespace tessera {
namespace {

rlim_t first_limit = 0;  // 0: nothing was raised

}  // namespace

void allow_all_open_files() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) == 0 && first_limit == 0) first_limit = before;
}

void restore_open_files() {
  rlimit files{};
  if (first_limit == 0 || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = first_limit < files.rlim_max ? first_limit : files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace tessera
