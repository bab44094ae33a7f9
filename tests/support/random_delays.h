#pragma once
// What a busy machine does to ranks: while it lives, threads of this process stand still at random instructions, mostly
// for less than 0.2 ms, now and then for 50 ms.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

namespace tessera::test {

class RandomDelays {
 public:
  explicit RandomDelays(std::uint32_t seed) : random_(seed) {
    struct sigaction action = {};
    action.sa_handler = stand_still;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignal, &action, nullptr);  // stays: without a handler the signal does nothing, too
    thread_ = std::thread([this] { run(); });
  }
  ~RandomDelays() {
    ends_ = true;
    thread_.join();
  }
  RandomDelays(const RandomDelays&) = delete;
  RandomDelays& operator=(const RandomDelays&) = delete;

  /// Since the process began.
  static std::int64_t count() { return delays; }

 private:
  static constexpr int kSignal = SIGURG;
  static inline std::atomic<std::int64_t> delays{0}, next_nanoseconds{0};

  static void stand_still(int) {
    const int error = errno;
    ++delays;
    const timespec time{0, next_nanoseconds};
    ::nanosleep(&time, nullptr);
    errno = error;
  }

  void run() {
    const auto own = ::syscall(SYS_gettid);
    while (!ends_) {
      std::vector<long> threads;
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
        threads.push_back(std::atol(task.path().filename().c_str()));
      for (int i = 0; i < 20 && !ends_; ++i) {
        const auto one = threads[random_() % threads.size()], kind = static_cast<long>(random_() % 500);
        next_nanoseconds = static_cast<std::int64_t>(random_() % (kind == 0   ? 50'000'000
                                                                  : kind < 25 ? 5'000'000
                                                                              : 200'000));
        if (one != own) ::syscall(SYS_tgkill, ::getpid(), one, kSignal);  // a thread that has ended is none
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 400));
      }
    }
  }

  std::mt19937 random_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

/// How long a soak lasts: TESSERA_TEST_SECONDS, else 2 s.
inline std::chrono::seconds soak_time() {
  const char* value = std::getenv("TESSERA_TEST_SECONDS");
  return std::chrono::seconds(value == nullptr ? 2 : std::atoi(value));
}

}  // namespace tessera::test
