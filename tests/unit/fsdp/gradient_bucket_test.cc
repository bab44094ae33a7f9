#include "fsdp/grads/gradient_bucket.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/fake_device.h"
#include "support/fake_streams.h"
#include "tensor/pinned_memory.h"

namespace tessera::fsdp {
namespace {

/// Two parameters of 3 and 5 elements for a world of 2: there are gaps between and behind them.
GradientBucket two_parameters(tensor::CopyStream* to_host = nullptr) {
  auto segments = make_segments(
      {{.name = "a", .shape = {3}, .trainable = true}, {.name = "b", .shape = {5}, .trainable = true}}, 2);
  GradientBucket bucket(0, 1, /*alone=*/false, to_host);
  TrainableSegment segment;
  segment.layout = std::move(segments.front());
  bucket.add_segment(std::move(segment));
  return bucket;
}

at::Tensor garbage(const GradientBucket& b) {
  return at::full({b.segments.front().layout.numel}, 7.0f);
}

at::Tensor part(const GradientBucket& b, std::size_t entry) {
  const auto& e = b.segments.front().layout.entries[entry];
  return b.buffers().front().narrow(0, e.offset, e.numel);
}

TEST(GradientBucket, GoesThroughItsStatesAndIsAwaitedWhileSomethingMayCome) {
  auto b = two_parameters();
  EXPECT_EQ(b.state, BucketState::kIdle);
  EXPECT_FALSE(b.awaited()) << "a unit that did not run is not waited for";
  b.expect();
  EXPECT_EQ(b.state, BucketState::kExpected);
  EXPECT_TRUE(b.awaited());
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  EXPECT_EQ(b.state, BucketState::kOpen);
  EXPECT_TRUE(b.awaited());
  b.state = BucketState::kFinished;
  b.expect();  // it runs again, as a recomputation
  EXPECT_EQ(b.state, BucketState::kFinished);
  EXPECT_FALSE(b.awaited());
}

TEST(GradientBucket, AddsUpWhatComesAndHasZerosWhereNothingCame) {
  auto b = two_parameters();
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  b.accumulate(0, 1, at::ones({5}));
  b.accumulate(0, 1, at::full({5}, 2.0f));
  b.fill_missing();
  EXPECT_TRUE(part(b, 1).equal(at::full({5}, 3.0f)));
  EXPECT_TRUE(part(b, 0).equal(at::zeros({3})));
  EXPECT_EQ(b.buffers().front().sum().item<float>(), 15.0f) << "the gaps are zero";
  b.close();
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  b.accumulate(0, 1, at::ones({5}));
  EXPECT_TRUE(part(b, 1).equal(at::ones({5}))) << "the next backward starts anew";
}

TEST(GradientBucket, GradientsOfADeviceAreThereWhenTheyAreReadOrAddedTo) {
  const test::FakeKernels kernels;
  const test::FakeStreams streams(1);
  const auto device = test::fake_device();
  tensor::CopyStream to_host(device);
  for (int turn = 0; turn < 20; ++turn) {
    auto b = two_parameters(&to_host);
    const auto place = garbage(b);
    const tensor::PinnedMemory pinned(place.mutable_data_ptr(), static_cast<std::int64_t>(place.nbytes()), device);
    b.open({place}, GradientBucket::Place::kTransport);
    b.accumulate(0, 0, at::ones({3}).to(device));
    b.accumulate(0, 1, at::ones({5}).to(device, at::kDouble));
    if (turn % 2 == 0) b.accumulate(0, 0, at::ones({3}).to(device));
    if (turn % 3 == 0) {
      b.leave_transport();
    } else if (turn % 3 == 1) {
      b.land();
    } else {
      b.forget();
      continue;
    }
    EXPECT_TRUE(part(b, 0).equal(at::full({3}, turn % 2 == 0 ? 2.0f : 1.0f)));
    EXPECT_TRUE(part(b, 1).equal(at::ones({5})));
  }
  EXPECT_EQ(test::FakeStreams::fault(), "");
  EXPECT_GT(test::FakeStreams::copies(), 0);
}

TEST(GradientBucket, WhatIsBeingPreparedLeavesWhenAnotherGradientComes) {
  auto b = two_parameters();
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  const auto prepared = b.reserve(0, 0);
  ASSERT_TRUE(prepared);
  EXPECT_FALSE(prepared->filled);
  EXPECT_EQ(b.reserve(0, 0), nullptr) << "one at a time";
  prepared->memory.fill_(4.0f);
  b.accumulate(0, 0, at::ones({3}));
  EXPECT_FALSE(b.commit(0, 0, *prepared)) << "it is elsewhere now";
  EXPECT_TRUE(prepared->memory.equal(at::full({3}, 4.0f)));
  EXPECT_TRUE(part(b, 0).equal(at::ones({3})));
}

TEST(GradientBucket, MovesToTheTransportAndBackWithItsValues) {
  auto b = two_parameters();
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  b.accumulate(0, 0, at::ones({3}));
  b.fill_missing();
  const auto place = garbage(b);
  b.move_to_transport({place});
  EXPECT_EQ(b.place(), GradientBucket::Place::kTransport);
  EXPECT_TRUE(b.buffers().front().is_same(place));
  EXPECT_EQ(place.sum().item<float>(), 3.0f);
  b.leave_transport();
  EXPECT_EQ(b.place(), GradientBucket::Place::kPrivate);
  place.fill_(9.0f);
  EXPECT_EQ(b.buffers().front().sum().item<float>(), 3.0f);
}

TEST(GradientBucket, ForgetsAFailedBackward) {
  auto b = two_parameters();
  b.expect();
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  const auto prepared = b.reserve(0, 0);
  b.accumulate(0, 1, at::ones({5}));
  b.forget();
  EXPECT_EQ(b.state, BucketState::kIdle);
  EXPECT_FALSE(b.has_buffers());
  b.open({garbage(b)}, GradientBucket::Place::kPrivate);
  b.fill_missing();
  EXPECT_EQ(b.buffers().front().count_nonzero().item<std::int64_t>(), 0);
}

}  // namespace
}  // namespace tessera::fsdp
