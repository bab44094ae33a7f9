#include "tessera/tensor/allocator.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace tessera::tensor {
namespace {

TEST(StepAllocator, CountsAndReusesLargeBlocks) {
  if (!use_step_allocator()) GTEST_SKIP() << "no address range";
  const auto before = allocator_stats();
  reset_peak_used();
  const void* first = nullptr;
  {
    const auto t = at::empty({1 << 20}, at::kFloat);
    first = t.const_data_ptr();
    EXPECT_GE(allocator_stats().used_bytes - before.used_bytes, 4 << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  }
  EXPECT_EQ(allocator_stats().used_bytes, before.used_bytes);
  EXPECT_GE(allocator_stats().peak_used_bytes - before.used_bytes, 4 << 20);
  EXPECT_EQ(at::empty({1 << 20}, at::kFloat).const_data_ptr(), first);
}

TEST(StepAllocator, KnowsWhetherATensorNeedsMoreMemory) {
  if (!use_step_allocator()) GTEST_SKIP() << "no address range";
  const std::int64_t bytes = allocator_stats().touched_bytes + (8 << 20);  // no free block is as large
  EXPECT_FALSE(has_free_block(bytes));
  {
    const auto t = at::empty({bytes}, at::kByte);
  }
  EXPECT_TRUE(has_free_block(bytes));
  const auto touched = allocator_stats().touched_bytes;
  const auto t = at::empty({bytes}, at::kByte);
  EXPECT_EQ(allocator_stats().touched_bytes, touched);
  EXPECT_FALSE(has_free_block(bytes));
}

TEST(StepAllocator, LeavesSmallBlocksToMalloc) {
  if (!use_step_allocator()) GTEST_SKIP() << "no address range";
  const auto before = allocator_stats().used_bytes;
  const auto t = at::empty({100}, at::kFloat);
  EXPECT_EQ(allocator_stats().used_bytes, before);
}

TEST(StepAllocator, ServesLibrariesThatAskForPlainMemory) {
  if (!use_step_allocator()) GTEST_SKIP() << "no address range";
  auto* allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20}) {
    void* data = allocator->raw_allocate(bytes);
    if (bytes > 0) std::memset(data, 1, bytes);
    allocator->raw_deallocate(data);
  }
}

TEST(StepAllocator, ThreadsKeepTheirValues) {
  if (!use_step_allocator()) GTEST_SKIP() << "no address range";
  std::vector<std::thread> threads;
  std::vector<double> sums(4);
  for (int r = 0; r < 4; ++r)
    threads.emplace_back([&sums, r] {
      at::get_num_threads();
      for (int i = 0; i < 200; ++i) {
        const auto t = at::arange(5000 + 100 * r, at::kDouble);
        sums[static_cast<std::size_t>(r)] = t.sum().item<double>();
      }
    });
  for (auto& t : threads) t.join();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(sums[static_cast<std::size_t>(r)], (5000 + 100 * r) * (4999 + 100 * r) / 2);
}

}  // namespace
}  // namespace tessera::tensor
