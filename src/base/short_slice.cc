#include "base/short_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera {
namespace {

/// The kernel's struct sched_attr, which not every C library declares.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;  // ns; runtime: the slice, of ordinary threads
};
static_assert(sizeof(SchedulingAttributes) == 48);

bool get(SchedulingAttributes& attributes) {
  return ::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0;
}

}  // namespace

void take_short_slices() {
  SchedulingAttributes attributes;  // policy and nice value stay
  if (!get(attributes) || attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;
  attributes.flags = 0;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

std::uint64_t slice_of_this_thread() {
  SchedulingAttributes attributes;
  return get(attributes) ? attributes.runtime : 0;
}

}  // namespace tessera
