#include "base/quiet_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "support/few_threads.h"

namespace tessera {
namespace {

TEST(QuietThreads, AreAsManyAsTheSystemAllows) {
  for (const int allowed : {0, 1, 3}) {
    std::latch end(1);
    std::atomic<int> ran{0};
    std::vector<std::thread> threads;
    {
      const test::FewThreads few(allowed);
      threads = start_quiet_threads("few", 3, [&] {
        end.wait();
        ++ran;
      });
    }
    EXPECT_EQ(threads.size(), static_cast<std::size_t>(allowed));
    end.count_down();
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(ran, allowed);
  }
}

TEST(QuietThreads, TakeNoSignalsButThoseOfTheirFaults) {
  bool takes_end = true, takes_fault = false;
  start_quiet_thread("quiet", [&] {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    takes_end = sigismember(&blocked, SIGTERM) == 0;
    takes_fault = sigismember(&blocked, SIGSEGV) == 0;
  }).join();
  EXPECT_FALSE(takes_end);
  EXPECT_TRUE(takes_fault);
}

}  // namespace
}  // namespace tessera
