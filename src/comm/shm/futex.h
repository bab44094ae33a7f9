#pragma once
// Sleeping on a word of memory that several processes may map (futex(2), shared).
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

/// Sleeps while *word == expected, at most `timeout`. May return early.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::milliseconds timeout);
void futex_wake_all(const std::atomic<std::uint32_t>& word);
/// Tells the core that this is a busy wait.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tessera::comm
