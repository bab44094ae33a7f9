#pragma once
// What the system lets this user have, where ranks may be too many for it.
#include <sys/resource.h>

#include <string>

#include "launch/output.h"

namespace tessera::launch {

struct Limits {
  rlim_t open_files = RLIM_INFINITY, processes = RLIM_INFINITY;
};
/// Of this process. The superuser's processes are not limited.
Limits own_limits();

/// ConfigError names the limit (ulimit -n, ulimit -u) that does not allow so many ranks on this machine, and what they
/// need.
void require_room(int ranks, const OutputOptions& output, const Limits& limits);

/// What there is to say of a fork() that has failed with `error`.
std::string why_no_process(int error);

}  // namespace tessera::launch
