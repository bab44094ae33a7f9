#include "comm/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tessera::comm {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::milliseconds timeout) {
  timespec limit{};
  limit.tv_sec = static_cast<std::time_t>(timeout.count() / 1000);
  limit.tv_nsec = static_cast<long>(timeout.count() % 1000) * 1'000'000;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera::comm
