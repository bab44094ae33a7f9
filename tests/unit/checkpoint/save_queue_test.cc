#include "checkpoint/save_queue.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>

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

/// Two tensors of which one may be copied: what a job reads of them, though both change after wait_copied().
std::vector<float> read_beside_changes(bool held) {
  SaveQueue queue(SaveQueue::Mode::kBackground);
  queue.allow_copies(2 * sizeof(float), 2 * sizeof(float));
  queue.hold();
  const auto small = at::ones({2}), large = at::ones({4});
  const auto copy = queue.snapshot(small), same = queue.snapshot(large);
  EXPECT_EQ(queue.copied_bytes(), 8);
  EXPECT_EQ(same->data_ptr(), large.data_ptr());
  EXPECT_EQ(queue.snapshot(large), same);
  EXPECT_EQ(queue.given_bytes(), 8 + 16);  // once each
  std::vector<float> read;
  queue.push([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    read = {(*copy)[1].item<float>(), (*same)[3].item<float>()};
  });
  if (!held) queue.release();
  queue.wait_copied();
  small.fill_(2);
  large.fill_(2);
  queue.release();
  queue.wait_idle();
  return read;
}

TEST(SaveQueue, WaitsForWhatReadsTensorsThatMayNotBeCopied) {
  EXPECT_EQ(read_beside_changes(/*held=*/false), (std::vector<float>{1, 1}));
  EXPECT_EQ(read_beside_changes(/*held=*/true), (std::vector<float>{1, 1}));
}

TEST(SaveQueue, ReadsWhatIsValidForAMomentAtOnceWhereItMayNotBeCopied) {
  SaveQueue queue(SaveQueue::Mode::kBackground);
  queue.allow_copies(2 * sizeof(float), 2 * sizeof(float));
  queue.hold();
  std::vector<std::pair<float, const void*>> read;
  const auto job = [&](const at::Tensor& t) { read.emplace_back(t[0].item<float>(), t.data_ptr()); };
  const auto tensor = at::ones({2});
  queue.push_with(tensor, job);
  tensor.fill_(2);
  EXPECT_TRUE(read.empty());
  queue.push_with(tensor, job);  // behind the first
  tensor.fill_(3);
  queue.release();
  queue.wait_idle();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, 1);
  EXPECT_NE(read[0].second, tensor.data_ptr());
  EXPECT_EQ(read[1], std::pair(2.F, static_cast<const void*>(tensor.data_ptr())));
  queue.allow_copies(2 * sizeof(float), 2 * sizeof(float));  // of the next save
  queue.push_with(tensor, job);
  queue.wait_idle();
  EXPECT_NE(read.back().second, tensor.data_ptr());
}

TEST(SaveQueue, MayCopyWhatIsValidForAMomentAlone) {
  SaveQueue queue(SaveQueue::Mode::kBackground);
  queue.allow_copies(/*snapshots=*/0, /*moments=*/8);
  queue.hold();
  const auto tensor = at::ones({2});
  const void* read = nullptr;
  EXPECT_EQ(queue.snapshot(tensor)->data_ptr(), tensor.data_ptr());
  queue.push_with(tensor, [&](const at::Tensor& t) { read = t.data_ptr(); });
  EXPECT_EQ(read, nullptr);
  queue.release();
  queue.wait_idle();
  EXPECT_NE(read, nullptr);
  EXPECT_NE(read, tensor.data_ptr());
}

}  // namespace
}  // namespace tessera::checkpoint
