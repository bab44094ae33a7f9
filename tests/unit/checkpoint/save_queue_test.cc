#include "checkpoint/save_queue.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

namespace tessera::checkpoint {
namespace {

/// They are for the thread that trains, which finishes its step.
TEST(SaveQueue, TakesNoSignalsInTheBackground) {
  SaveQueue queue(SaveQueue::Mode::kBackground);
  bool takes_end = true;
  queue.push([&] {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    takes_end = sigismember(&blocked, SIGTERM) == 0;
  });
  queue.wait_idle();
  EXPECT_FALSE(takes_end);
}

}  // namespace
}  // namespace tessera::checkpoint
