#pragma once
#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

/// While it lives, this thread and those that it starts take no signals but those of their own faults.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

/// A thread to which the system sends no signals.
template <class Body>
std::thread start_quiet_thread(const char* name, Body body) {
  const WithoutSignals quiet;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

/// As many of `count` such threads as the system allows: perhaps fewer, perhaps none.
template <class Body>
std::vector<std::thread> start_quiet_threads(const char* name, std::size_t count, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    while (threads.size() < count) threads.push_back(start_quiet_thread(name, body));
  } catch (const std::system_error&) {  // a limit of processes or memory
  }
  return threads;
}

}  // namespace tessera
