#include "support/fake_device.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tensor/device_memory.h"

namespace tessera::test {
namespace {

at::Tensor numbers() {
  return torch::arange(12, torch::kFloat).reshape({3, 4});
}

TEST(FakeDevice, CopiesToTheDeviceAndBack) {
  const auto x = numbers().to(fake_device());
  EXPECT_EQ(x.device(), fake_device());
  EXPECT_FALSE(x.is_cpu());
  EXPECT_TRUE(torch::equal(x.cpu(), numbers()));
  EXPECT_TRUE(torch::equal(x.t().slice(0, 1, 3).cpu(), numbers().t().slice(0, 1, 3)));  // a view
  EXPECT_TRUE(torch::equal(x.to(torch::kBFloat16).cpu(), numbers().to(torch::kBFloat16)));
  EXPECT_EQ(x[2][1].item<float>(), 9);
}

TEST(FakeDevice, MemoryIsNotTheCpus) {
  const auto x = numbers().to(fake_device());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], x.data_ptr(), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(write(ends[1], x.cpu().data_ptr(), 4), 4);
  close(ends[0]);
  close(ends[1]);
}

TEST(FakeDevice, CountsItsBytes) {
  const auto before = fake_device_bytes();
  {
    const auto x = torch::empty({5}, at::TensorOptions().device(fake_device()));
    EXPECT_EQ(fake_device_bytes() - before, 20);
  }
  EXPECT_EQ(fake_device_bytes(), before);
}

TEST(FakeDevice, SaysItsPeakAsADevicesAllocatorDoes) {
  {
    const auto x = torch::empty({1 << 20}, at::TensorOptions().device(fake_device()));
  }
  const auto peak = tensor::peak_device_bytes(fake_device());
  ASSERT_TRUE(peak);
  EXPECT_GE(*peak, 4 << 20);
  {
    const auto x = torch::empty({*peak / 4 + 100}, at::TensorOptions().device(fake_device()));
  }
  EXPECT_GE(*tensor::peak_device_bytes(fake_device()), *peak + 400);
  EXPECT_FALSE(tensor::peak_device_bytes(at::kCPU));
}

TEST(FakeDevice, OperatorsGiveWhatTheCpuGives) {
  const auto x = numbers().to(fake_device());
  const auto y = torch::softmax(x * 0.1, -1);
  EXPECT_EQ(y.device(), fake_device());
  EXPECT_TRUE(torch::equal(y.cpu(), torch::softmax(numbers() * 0.1, -1)));
  const auto ids = torch::tensor({2, 0}).to(fake_device());
  EXPECT_TRUE(torch::equal(x.index_select(0, ids).cpu(), numbers().index_select(0, torch::tensor({2, 0}))));
  x.narrow(1, 1, 2).mul_(2);  // in place, into a view
  EXPECT_EQ(x.cpu().sum().item<float>(), numbers().sum().item<float>() + numbers().narrow(1, 1, 2).sum().item<float>());
  EXPECT_ANY_THROW(x + numbers());  // devices do not mix
}

TEST(FakeDevice, AutogradRunsOnIt) {
  const auto run = [](at::Device device) {
    auto x = numbers().to(device).set_requires_grad(true);
    auto w = (numbers() * 0.5 - 2).to(device).set_requires_grad(true);
    torch::tanh(torch::matmul(x, w.t()) * 0.1).square().sum().backward();
    EXPECT_EQ(w.grad().device(), device);
    return std::vector{x.grad().cpu(), w.grad().cpu()};
  };
  const auto here = run(at::kCPU), there = run(fake_device());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(here[i], there[i])) << i;
}

TEST(FakeDevice, ThreadsUseItAtOnce) {
  std::vector<std::thread> ranks;
  std::vector<double> sums(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([rank, &sums] {
      auto x = torch::full({100}, rank, torch::kFloat).to(fake_device(rank)).set_requires_grad(true);
      for (int i = 0; i < 10; ++i) (x * x).sum().backward();
      sums[static_cast<std::size_t>(rank)] = x.grad().sum().item<double>();
    });
  }
  for (auto& rank : ranks) rank.join();
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(sums[static_cast<std::size_t>(rank)], 2000.0 * rank);
}

}  // namespace
}  // namespace tessera::test
