#include "tensor/uploader.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "base/upload_ring.h"
#include "support/fake_device.h"
#include "support/fake_streams.h"
#include "support/host_kernels.h"
#include "support/mapped_file.h"
#include "tensor/file_pages.h"
#include "tensor/pinned_memory.h"
#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

using test::fake_device;

class UploaderTest : public ::testing::Test {
 protected:
  ~UploaderTest() override { EXPECT_EQ(test::FakeStreams::fault(), ""); }
  at::Tensor there(const at::Tensor& host) { return at::empty(host.sizes(), host.options().device(fake_device())); }
  static std::shared_ptr<Uploader::Batch> start(Uploader& uploader, const at::Tensor& to, const at::Tensor& from) {
    const auto batch = uploader.begin();
    uploader.add(batch, to, from);
    uploader.end(*batch);
    return batch;
  }

  const at::Device device_ = fake_device();
  const test::FakeKernels kernels_;
  const test::FakeStreams streams_{3};
};

TEST_F(UploaderTest, BringsPinnedAndPageableMemoryOfAnySize) {
  const auto pinned = torch::arange(1000, torch::kFloat);
  const PinnedMemory registered(pinned.mutable_data_ptr(), static_cast<std::int64_t>(pinned.nbytes()), device_);
  ASSERT_TRUE(pinned.is_pinned());
  std::vector<at::Tensor> hosts = {pinned, torch::ones({}), torch::empty({0}), torch::arange(7).to(torch::kBFloat16)};
  hosts.push_back(torch::arange(3 * kUploadPieceBytes + 5).to(torch::kByte));
  hosts.push_back(torch::arange(kUploadPieceBytes / 2).to(torch::kShort).view({2, -1}));
  Uploader uploader(device_);
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::shared_ptr<Uploader::Batch>> batches;
    std::vector<at::Tensor> arrived;
    for (const auto& host : hosts) {
      arrived.push_back(there(host));
      batches.push_back(start(uploader, arrived.back(), host));
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      uploader.wait(*batches[i]);
      EXPECT_TRUE(torch::equal(arrived[i].cpu(), hosts[i])) << i;
    }
  }
}

TEST_F(UploaderTest, ABatchThatWasNotEndedIsWaitedForAllTheSame) {
  const auto host = torch::arange(1000, torch::kFloat), arrived = there(host);
  Uploader uploader(device_);
  const auto batch = uploader.begin();
  uploader.add(batch, arrived, host);
  uploader.wait(*batch);
  EXPECT_TRUE(torch::equal(arrived.cpu(), host));
}

TEST_F(UploaderTest, TheRingIsPinnedWhenItIsNeededAndAsLongAsItLives) {
  const auto host = torch::ones({10}), arrived = there(host);
  {
    Uploader uploader(device_);
    EXPECT_EQ(test::registered_regions(), 0);
    const auto batch = start(uploader, arrived, host);
    EXPECT_EQ(test::registered_regions(), 1);
    uploader.wait(*batch);
  }
  EXPECT_EQ(test::registered_regions(), 0);
}

TEST_F(UploaderTest, EndsWhenNothingIsReadFromTheRing) {
  const auto host = torch::arange(2 * kUploadPieceBytes).to(torch::kByte), arrived = there(host);
  {
    Uploader uploader(device_);
    const auto batch = start(uploader, arrived, host);
  }
  EXPECT_TRUE(torch::equal(arrived.cpu(), host));
}

TEST_F(UploaderTest, APageThatCannotBeReadIsAnErrorOfItsReader) {
  const test::MappedFile file("uploader_cut", 4);
  const auto host = file.pages(0, 4), arrived = there(host);
  const FilePages pages({host});
  file.cut(2);
  Uploader uploader(device_);
  const auto batch = start(uploader, arrived, host);
  uploader.wait(*batch);
  EXPECT_EQ(arrived.cpu()[3 * test::kPageBytes].item<int>(), 0);
  EXPECT_THROW(pages.check(), DataError);
}

TEST_F(UploaderTest, WithoutPinnedMemoryTheCallerWaits) {
  test::refuse_to_register(true);
  const auto host = torch::arange(1000, torch::kFloat), arrived = there(host);
  const auto copies = test::FakeStreams::copies();
  Uploader uploader(device_);
  const auto batch = start(uploader, arrived, host);
  uploader.wait(*batch);
  test::refuse_to_register(false);
  EXPECT_TRUE(torch::equal(arrived.cpu(), host));
  EXPECT_EQ(test::FakeStreams::copies(), copies);
}

}  // namespace
}  // namespace tessera::tensor
