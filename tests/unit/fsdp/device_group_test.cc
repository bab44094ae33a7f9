// Collectives of tensors on a device: what the host's group gives for the same tensors, by every engine; and FSDP over
// NCCL's functions.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "comm/device/device_communicator.h"
#include "comm/device/device_identity.h"
#include "support/fake_device.h"
#include "support/fake_nccl.h"
#include "support/fake_streams.h"
#include "support/program.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using test::fake_device;

enum class Engine { kHost, kNccl, kNcclWithKernels, kNcclOnStreams };

class DeviceGroup : public ::testing::TestWithParam<Engine> {
 protected:
  DeviceGroup() {
    if (GetParam() == Engine::kNcclWithKernels || GetParam() == Engine::kNcclOnStreams) kernels_.emplace();
    if (GetParam() == Engine::kNcclOnStreams) streams_.emplace(7);
  }
  ~DeviceGroup() override { EXPECT_EQ(test::FakeNccl::open_communicators(), 0); }

  /// f(the host's group, the same for tensors of this rank's device, the device).
  void run(int ranks, const std::function<void(comm::Communicator&, comm::Communicator&, at::Device)>& f) {
    comm::run_threads(ranks, [&](std::shared_ptr<comm::Communicator> host) {
      const auto device = fake_device(host->rank());
      auto engine = GetParam() == Engine::kHost ? comm::make_staged_engine(host) : comm::make_nccl_engine(host, device);
      const auto group = comm::with_device(host, std::move(engine));
      f(*host, *group, device);
    });
    EXPECT_EQ(test::fake_device_bytes(), 0);
  }

  test::FakeNccl nccl_;
  std::optional<test::FakeKernels> kernels_;
  std::optional<test::FakeStreams> streams_;
};

at::Tensor values(std::int64_t numel, int rank, at::ScalarType dtype) {
  return (at::arange(numel, at::kFloat) * 0.37 + rank * 1.31).sin().mul(100).to(dtype);
}

TEST_P(DeviceGroup, GathersWhatTheHostGathers) {
  for (const int ranks : {1, 2, 3})
    run(ranks, [&](auto& host, auto& group, at::Device device) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kByte}) {
        const auto mine = values(5, host.rank(), dtype);
        const auto expected = at::empty({5 * ranks}, mine.options());
        host.all_gather(expected, mine)->wait();
        const auto found = at::empty({5 * ranks}, mine.options().device(device));
        group.all_gather(found, mine.to(device))->wait();
        EXPECT_TRUE(at::equal(found.cpu(), expected));
        const auto in_place = at::empty({5 * ranks}, mine.options().device(device));
        const auto part = in_place.narrow(0, 5 * host.rank(), 5);
        part.copy_(mine);
        group.all_gather(in_place, part)->wait_input_free();
        EXPECT_TRUE(at::equal(in_place.cpu(), expected));
      }
    });
}

TEST_P(DeviceGroup, SumsHaveTheHostsBits) {
  for (const int ranks : {1, 2, 3, 5})
    run(ranks, [&](auto& host, auto& group, at::Device device) {
      for (const auto in_dtype : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const auto out_dtype : {at::kFloat, at::kBFloat16})
          for (const bool accumulate : {false, true}) {
            const comm::ReduceOptions how{.scale = 1.0 / 3, .accumulate = accumulate};
            const auto mine = values(7 * ranks, host.rank(), in_dtype);
            const auto expected = values(7, 11, out_dtype);
            const auto found = expected.to(device);
            host.reduce_scatter(expected, mine, how)->wait_input_free();
            group.reduce_scatter(found, mine.to(device), how)->wait_input_free();
            EXPECT_TRUE(at::equal(found.cpu(), expected)) << ranks << in_dtype << out_dtype << accumulate;
          }
      for (const std::int64_t numel : {1, 6, 7})
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          const auto expected = values(numel, host.rank(), dtype);
          const auto found = expected.to(device);
          host.all_reduce(expected, comm::ReduceOp::kSum)->wait();
          group.all_reduce(found, comm::ReduceOp::kSum)->wait();
          EXPECT_TRUE(at::equal(found.cpu(), expected)) << ranks << " ranks, " << numel << dtype;
        }
    });
}

TEST_P(DeviceGroup, ExtremesBroadcastsAndPartsOfTheGroup) {
  run(4, [&](auto& host, auto& group, at::Device device) {
    for (const auto op : {comm::ReduceOp::kMax, comm::ReduceOp::kMin}) {
      const auto expected = values(5, host.rank(), at::kFloat), found = expected.to(device);
      host.all_reduce(expected, op)->wait();
      group.all_reduce(found, op)->wait();
      EXPECT_TRUE(at::equal(found.cpu(), expected));
    }
    const auto sent = values(5, host.rank(), at::kLong).to(device);
    group.broadcast(sent, 2)->wait();
    EXPECT_TRUE(at::equal(sent.cpu(), values(5, 2, at::kLong)));
    const auto part = group.split(host.rank() % 2);
    const auto sum = at::full({3}, host.rank() + 1.0).to(device);
    part->all_reduce(sum, comm::ReduceOp::kSum)->wait();
    EXPECT_EQ(sum.cpu()[0].template item<float>(), host.rank() % 2 == 0 ? 4 : 6);
    const auto there = at::ones({2});
    group.all_reduce(there, comm::ReduceOp::kSum)->wait();  // tensors of the host take the host's way
    EXPECT_EQ(there[0].template item<float>(), 4);
  });
}

std::string name_of(const ::testing::TestParamInfo<Engine>& info) {
  constexpr const char* kNames[] = {"Host", "Nccl", "NcclWithKernels", "NcclOnStreams"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Engines, DeviceGroup,
                         ::testing::Values(Engine::kHost, Engine::kNccl, Engine::kNcclWithKernels,
                                           Engine::kNcclOnStreams),
                         name_of);

/// Ranks that all see one device, number 0, as under srun --gpus-per-task=1: a physical one of their own, or not.
class SeenDevices : public ::testing::Test {
 protected:
  SeenDevices() {
    comm::use_device_identity([](at::Device) { return own_; });
    ::setenv("TESSERA_DEVICE_TRANSPORT", "nccl", 1);
    ::unsetenv(kHostOfNccl);
  }
  ~SeenDevices() override {
    comm::use_device_identity(nullptr);
    ::unsetenv("TESSERA_DEVICE_TRANSPORT");
    ::unsetenv(kHostOfNccl);
  }

  /// Sums over ranks, each on its fake_device(0), by the engine that the group chooses.
  static void sum_up(const std::vector<std::string>& device_of_rank) {
    const int ranks = static_cast<int>(device_of_rank.size());
    comm::run_threads(ranks, [&](std::shared_ptr<comm::Communicator> host) {
      own_ = device_of_rank[static_cast<std::size_t>(host->rank())];
      const auto group = comm::with_device(host, fake_device());
      const auto sum = at::full({3}, host->rank() + 1.0).to(fake_device());
      group->all_reduce(sum, comm::ReduceOp::kSum)->wait();
      EXPECT_EQ(sum.cpu()[0].item<float>(), ranks * (ranks + 1) / 2);
    });
  }

  static constexpr const char* kHostOfNccl = "NCCL_HOSTID";  // set where NCCL must not see that ranks share a device
  static inline thread_local std::string own_;
  test::FakeNccl nccl_;
};

TEST_F(SeenDevices, AreOnesOwnWhateverTheirNumber) {
  sum_up({"one", "two"});
  EXPECT_EQ(std::getenv(kHostOfNccl), nullptr);
}

TEST_F(SeenDevices, AreSharedWhereTheyAreOne) {
  sum_up({"one", "one"});
  EXPECT_NE(std::getenv(kHostOfNccl), nullptr);
}

TEST(Nccl, AnErrorNamesTheRankAndTheCall) {
  const test::FakeNccl nccl;
  test::FakeNccl::fail(0, "ncclAllGather");
  std::string said;
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> host) {
    const auto group = comm::with_device(host, comm::make_nccl_engine(host, fake_device()));
    const auto x = at::ones({2}).to(fake_device());
    try {
      group->all_gather(at::empty_like(x), x)->wait();
    } catch (const CommError& e) {
      said = e.what();
    }
  });
  EXPECT_SAYS(said, "rank 0: ncclAllGather: unhandled system error");
}

TEST(Nccl, AnErrorThatComesLaterEndsTheNextOperation) {
  const test::FakeNccl nccl;
  std::string said, exchanged;
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> host) {
    const auto group = comm::with_device(host, comm::make_nccl_engine(host, fake_device()));
    const auto x = at::ones({2}).to(fake_device());
    group->all_gather(at::empty_like(x), x)->wait();
    test::FakeNccl::fail_later(0);
    for (int tries = 0; tries < 100 && said.empty(); ++tries) try {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        group->broadcast(x, 0)->wait();
      } catch (const CommError& e) {
        said = e.what();
      }
    try {
      group->all_gather_objects("norm");
    } catch (const CommError& e) {
      exchanged = e.what();
    }
  });
  EXPECT_SAYS(said, "NCCL: unhandled system error");
  EXPECT_SAYS(exchanged, "NCCL: unhandled system error");
  EXPECT_EQ(test::FakeNccl::open_communicators(), 0) << "it was aborted";
}

TEST(Nccl, ACommunicatorIsNotFreedWhileTheRankTellsItSomething) {
  const test::FakeNccl nccl;
  std::string said;
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> host) {
    const auto group = comm::with_device(host, comm::make_nccl_engine(host, fake_device()));
    const auto x = at::ones({2}).to(fake_device());
    test::FakeNccl::before_calls([](int rank, const std::string&) {
      test::FakeNccl::fail_later(rank);
      std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the watch sees it
    });
    try {
      group->all_gather(at::empty_like(x), x)->wait();
    } catch (const CommError& e) {
      said = e.what();
    }
  });
  EXPECT_SAYS(said, "NCCL: unhandled system error");
  EXPECT_EQ(test::FakeNccl::communicators_freed_in_calls(), 0);
  EXPECT_EQ(test::FakeNccl::open_communicators(), 0) << "it was aborted";
}

TEST(Nccl, AnOperationThatDoesNotEndIsBrokenOffWithItsNameAndTheTime) {
  for (const std::string seconds : {"1", "0.5"}) {
    const test::FakeNccl nccl;
    const test::FakeStreams streams(3);
    ::setenv("TESSERA_COMM_TIMEOUT_S", seconds.c_str(), 1);
    std::string said;
    comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> host) {
      const auto group = comm::with_device(host, comm::make_nccl_engine(host, fake_device()));
      const auto x = at::ones({2}).to(fake_device()), out = at::empty_like(x);
      test::FakeNccl::hang(0);
      try {
        group->all_gather(out, x)->wait();
      } catch (const CommError& e) {
        said = e.what();
      }
    });
    ::unsetenv("TESSERA_COMM_TIMEOUT_S");
    EXPECT_SAYS(said, "rank 0: all_gather of 2 Float: no progress for " + seconds + " s");
    EXPECT_EQ(test::FakeNccl::open_communicators(), 0);
  }
}

/// A unit in whose forward something happens.
class Eventful final : public nn::Layer {
 public:
  explicit Eventful(std::function<void()> event) : event_(std::move(event)) {
    scale = register_parameter("scale", at::ones({1}));
  }
  std::string class_name() const override { return "Eventful"; }
  at::Tensor scale;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    event_();
    return x * scale;
  }

 private:
  std::function<void()> event_;
};

TEST(Nccl, AnErrorThatComesWhileAUnitComputesIsThrownWhereItIsReleased) {
  const test::FakeNccl nccl;
  ::setenv("TESSERA_DEVICE_TRANSPORT", "nccl", 1);
  std::string said;
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> host) {
    const auto rank = host->rank();
    Eventful net([rank] {
      if (rank != 0) return;
      test::FakeNccl::fail_later(rank);
      std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the watch sees it
    });
    const auto sharded = fully_shard(net, host, {.device = fake_device(rank), .state_on = StateOn::kDevice});
    try {
      const at::NoGradGuard no_grad;
      net(at::ones({2}));
    } catch (const CommError& e) {
      if (rank == 0) said = e.what();
    }
  });
  ::unsetenv("TESSERA_DEVICE_TRANSPORT");
  EXPECT_SAYS(said, "NCCL: unhandled system error");
}

TEST(Nccl, WhereItIsMissingTheErrorSaysWhereItComesFrom) {
  try {
    comm::nccl();
    GTEST_SKIP() << "NCCL is on this machine";
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()), "libtorch's CUDA build");
    EXPECT_SAYS(std::string(e.what()), "fsdp_offload_params: true");
  }
}

}  // namespace
}  // namespace tessera::fsdp
