// What the host knows of a device's tensors without waiting for the device.
#include "tensor/device.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "support/fake_device.h"
#include "tensor/host_copy.h"

namespace tessera::tensor {
namespace {

at::Tensor ids() {
  return torch::arange(12, torch::kLong).reshape({3, 4});
}

/// Waits of a call.
template <class F>
std::int64_t waits_in(const F& f) {
  const auto before = test::fake_device_waits();
  f();
  return test::fake_device_waits() - before;
}

TEST(ToDevice, WaitsForNothingAndIsNotAskedAgain) {
  const auto here = ids();
  at::Tensor there, again;
  EXPECT_EQ(waits_in([&] {
              there = to_device(here, test::fake_device());
              again = on_host(there);
            }),
            0);
  EXPECT_EQ(there.device(), test::fake_device());
  EXPECT_TRUE(again.is_same(here));
  EXPECT_TRUE(on_host(there.detach()).is_same(here));
  EXPECT_TRUE(torch::equal(there.cpu(), here));
  EXPECT_TRUE(beside(there, here).is_same(here));
}

TEST(ToDevice, WhatHasChangedSinceIsReadAgain) {
  auto here = ids();
  auto there = to_device(here, test::fake_device());
  const auto alias = there.detach();
  there.add_(1);
  at::Tensor read;
  EXPECT_EQ(waits_in([&] { read = on_host(there); }), 1);
  EXPECT_TRUE(torch::equal(read, ids() + 1));
  EXPECT_TRUE(torch::equal(on_host(alias), ids() + 1));

  there = to_device(here, test::fake_device());
  here.zero_();
  EXPECT_EQ(waits_in([&] { read = on_host(there); }), 1);
  EXPECT_TRUE(torch::equal(read, ids()));
}

TEST(ToDevice, PartsAndResultsAreRead) {
  const auto there = to_device(ids(), test::fake_device());
  at::Tensor part, sum;
  EXPECT_EQ(waits_in([&] { part = on_host(there.narrow(0, 1, 2)), sum = on_host(there + 1); }), 2);
  EXPECT_TRUE(torch::equal(part, ids().narrow(0, 1, 2)));
  EXPECT_TRUE(torch::equal(sum, ids() + 1));
}

TEST(ToDevice, PassesGradientsBack) {
  auto here = torch::ones({3}, at::TensorOptions().requires_grad(true));
  (to_device(here, test::fake_device()) * 2).sum().backward();
  EXPECT_TRUE(torch::equal(here.grad(), torch::full({3}, 2.0f)));
}

TEST(ToDevice, OnTheCpuAndUndefinedTensorsStay) {
  const auto here = ids();
  EXPECT_TRUE(to_device(here, at::kCPU).is_same(here));
  EXPECT_TRUE(beside(here, here).is_same(here));
  EXPECT_TRUE(on_host(here).is_same(here));
  EXPECT_FALSE(on_host(at::Tensor()).defined());
  EXPECT_FALSE(to_device(at::Tensor(), test::fake_device()).defined());
}

TEST(HostCopy, WaitsOnceForAllThatWasQueuedBefore) {
  auto there = to_device(torch::ones({2}), test::fake_device());
  const HostCopy first(there);
  there.add_(1);
  const HostCopy second(there);
  EXPECT_EQ(waits_in([&] { EXPECT_TRUE(torch::equal(second.read(), torch::full({2}, 2.0f))); }), 1);
  EXPECT_EQ(waits_in([&] { EXPECT_TRUE(torch::equal(first.read(), torch::ones({2}))); }), 0);
}

TEST(HostCopy, OfTheHostsOwnIsItself) {
  EXPECT_TRUE(torch::equal(HostCopy(ids()).read(), ids()));
}

}  // namespace
}  // namespace tessera::tensor
