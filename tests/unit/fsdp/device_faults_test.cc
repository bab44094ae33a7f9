// Faults of a device, of NCCL and of ranks at random operations of a training: every rank ends with an error that says
// what failed, nothing stays behind, and the next training has the bits of the one before. TESSERA_TEST_FAULTS=500 and
// TESSERA_TEST_SEED make a campaign of it, which prints a table.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <random>
#include <thread>

#include "support/fake_device.h"
#include "support/fake_nccl.h"
#include "support/fake_streams.h"
#include "support/program.h"
#include "support/train_small_net.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"

namespace tessera::fsdp::device_faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using test::FakeCall;
using testing::SmallNet;

constexpr int kSteps = 2, kBlocks = 3, kMostRanks = 3;
constexpr double kShort = 0.5, kLong = 60;  // timeouts, in seconds
constexpr double kMargin = 5;               // beyond a short one: the machine may be busy

enum class Kind {
  kNcclError,
  kNcclErrorLater,
  kHang,
  kOtherOrder,
  kOtherUnits,
  kThrows,
  kThrowsInBackward,
  kLeaves,
  kOutOfMemory,
  kCopyFails,
  kNone
};
constexpr int kKinds = static_cast<int>(Kind::kNone);

struct Expected {
  const char* name;
  const char* says;    // the error of the rank whose fault it is
  bool waits = false;  // the fault is found at the timeout, at the latest
  bool all_say = false;
};
constexpr Expected kExpected[] = {
    {"a call of NCCL returns an error", "unhandled system error (made up); NCCL_DEBUG=INFO says more"},
    {"NCCL reports an error later", "NCCL: unhandled system error (made up)"},
    {"a collective hangs", "no progress for 0.5 s", true, true},
    {"a rank makes a call that others do not make", "all_reduce", true},
    {"a rank leaves out a unit", "modules", true, true},
    {"a rank throws in a forward", "a failing block"},
    {"a rank throws in a recomputation", "a failing block"},
    {"a rank leaves early", " has left the group after ", true, true},
    {"a device has no memory", "out of memory. What helps: "},
    {"a copy fails", ": fake device: a copy failed"},
    {"nothing", ""},
};

struct How {
  bool resident;  // parameters stay on the device, and there is NCCL; else they are copied there
  int ranks;
  bool checkpointing;  // of activations
};

struct Fault {
  Kind kind = Kind::kNone;
  int rank = 0;         // whose it is
  std::int64_t at = 0;  // which call, or block and step
  const Expected& expected() const { return kExpected[static_cast<int>(kind)]; }
};

std::string shown(const How& how, const Fault& fault) {
  return fmt::format("{}: number {} of rank {} of {}, parameters {} the device{}", fault.expected().name, fault.at,
                     fault.rank, how.ranks, how.resident ? "stay on" : "are copied to",
                     how.checkpointing ? ", checkpointing" : "");
}

/// Of one rank: calls that may fail.
struct Counts {
  std::atomic<std::int64_t> nccl{0}, allocations{0}, copies{0};
};

struct Result {
  std::array<std::string, kMostRanks> errors;  // by rank; empty: it came to its end
  std::array<std::map<std::string, at::Tensor>, kMostRanks> weights;
  std::array<Counts, kMostRanks> counts;
  std::atomic<bool> felt{false};
  double seconds = 0;
};

/// Trains on ranks that are threads.
class Training {
 public:
  Training(const How& how, const Fault& fault, std::uint32_t seed) : how_(how), fault_(fault), streams_(seed) {
    test::FakeNccl::before_calls([this](int rank, const std::string& function) { before_nccl(rank, function); });
    test::before_fake_calls([this](int rank, FakeCall call) { before_device(rank, call); });
  }
  ~Training() { test::before_fake_calls(nullptr); }

  void run(Result& result) {
    result_ = &result;
    const double timeout = fault_.expected().waits ? kShort : kLong;
    ::setenv("TESSERA_COMM_TIMEOUT_S", fmt::format("{}", timeout).c_str(), 1);
    ::setenv("TESSERA_DEVICE_TRANSPORT", "nccl", 1);
    const auto begin = Clock::now();
    auto ended = std::async(std::launch::async, [this] { run_ranks(); });
    if (ended.wait_for(Seconds(kShort + kMargin)) != std::future_status::ready) {
      std::cerr << "a rank waits for ever; " << shown(how_, fault_) << '\n';
      for (const auto& error : result.errors) std::cerr << "  " << error << '\n';
      std::abort();  // nobody can end its thread
    }
    result.seconds = Seconds(Clock::now() - begin).count();
    ::unsetenv("TESSERA_COMM_TIMEOUT_S");
    ::unsetenv("TESSERA_DEVICE_TRANSPORT");
  }

 private:
  bool is(Kind kind, int rank) const { return fault_.kind == kind && fault_.rank == rank; }
  void feel() { result_->felt = true; }

  void before_nccl(int rank, const std::string& function) {
    const auto now = result_->counts[static_cast<std::size_t>(rank)].nccl++;
    if (fault_.rank != rank || fault_.at != now || fault_.kind > Kind::kHang) return;
    feel();
    if (fault_.kind == Kind::kNcclError) return test::FakeNccl::fail(rank, function);
    test::FakeNccl::hang(rank);
    if (fault_.kind == Kind::kNcclErrorLater) test::FakeNccl::fail_later(rank);
  }
  void before_device(int rank, FakeCall call) {
    auto& counts = result_->counts[static_cast<std::size_t>(rank)];
    const bool allocates = call == FakeCall::kAllocation;
    const auto now = (allocates ? counts.allocations : counts.copies)++;
    if (!is(allocates ? Kind::kOutOfMemory : Kind::kCopyFails, rank) || fault_.at != now) return;
    feel();
    TORCH_CHECK_WITH(OutOfMemoryError, !allocates, "fake out of memory.");
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 1, "fake device: a copy failed");
  }

  void run_ranks() {
    try {
      comm::run_threads(how_.ranks, [this](const std::shared_ptr<comm::Communicator>& group) {
        try {
          train(group->rank(), group);
        } catch (const std::exception& e) {
          result_->errors[static_cast<std::size_t>(group->rank())] = e.what();
          throw;
        }
      });
    } catch (const std::exception&) {  // noted
    }
  }

  /// As a task does.
  void train(int rank, const std::shared_ptr<comm::Communicator>& group) {
    SmallNet net({.blocks = kBlocks});
    FsdpOptions options{.wrap = wrap_classes({"MlpBlock"})};
    options.device = test::fake_device(rank);
    options.state_on = how_.resident ? StateOn::kDevice : StateOn::kHost;
    if (how_.checkpointing) options.activation_checkpointing = same_as_wrap();
    const auto sharded = fully_shard(net, group, options);
    optim::AdamW optimizer(sharded->parameters(), parameter_slices(*sharded), testing::adamw_options());
    for (int step = 0; step < kSteps; ++step) {
      if (fault_.at / kBlocks == step && is(Kind::kLeaves, rank)) return feel();
      tensor::naming_device_errors([&] { return fmt::format("step {}, {}", step + 1, sharded->activity()); },
                                   [&] { train_step(net, *sharded, optimizer, rank, step); });
    }
    tensor::naming_device_errors([] { return std::string("saving"); },
                                 [&] {
                                   sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
                                     result_->weights[static_cast<std::size_t>(rank)][name] = t.clone();
                                   });
                                 });
    sharded->group().barrier();
  }

  void train_step(SmallNet& net, FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, int rank, int step) {
    const auto mine = [&](Kind kind) {
      const bool now = is(kind, rank) && fault_.at / kBlocks == step;
      if (now) feel();
      return now;
    };
    const auto number = static_cast<int>(fault_.at % kBlocks);
    auto& block = *net.blocks[static_cast<std::size_t>(number)];
    const auto device = how_.resident ? test::fake_device(rank) : at::Device(at::kCPU);
    if (mine(Kind::kOtherOrder)) sharded.group().all_reduce(at::ones({3}, device), comm::ReduceOp::kSum)->wait();
    net.options.skip = mine(Kind::kOtherUnits) ? number : -1;
    block.throws = mine(Kind::kThrows);
    const auto loss = testing::loss_of(net(testing::batch(rank, step)), rank, step);
    block.throws = mine(Kind::kThrowsInBackward);
    loss.backward();
    static_cast<void>(loss.item<double>());
    sharded.clip_grad_norm(0.05, optimizer);
    optimizer.step();
    optimizer.zero_grad();
  }

  const How how_;
  const Fault fault_;
  const test::FakeNccl nccl_;
  const test::FakeKernels kernels_;
  const test::FakeStreams streams_;
  Result* result_ = nullptr;
};

int number_of(const char* variable, int otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

int threads_now() {
  int count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// In a moment: a thread of autograd may not have given up yet what it held for a backward that failed.
template <class Condition>
bool becomes_true(const Condition& condition) {
  for (const auto end = Clock::now() + 5s; Clock::now() < end; std::this_thread::sleep_for(1ms))
    if (condition()) return true;
  return condition();
}

void expect_same_weights(const Result& run, const Result& reference) {
  for (std::size_t r = 0; r < run.weights.size(); ++r)
    for (const auto& [name, t] : run.weights[r])
      EXPECT_TRUE(at::equal(t, reference.weights[r].at(name))) << "rank " << r << ", " << name;
}

/// That of the rank whose fault it is says what failed; the others name a rank and what they were at.
void expect_errors_by_name(const How& how, const Fault& fault, const Result& run) {
  const auto rank_of_fault = "ank " + std::to_string(fault.rank);
  const bool of_nccl = fault.kind <= Kind::kHang;
  const bool in_start = of_nccl && fault.at == 0;  // where NCCL's communicator begins, no unit runs
  for (int r = 0; r < how.ranks; ++r) {
    const auto& error = run.errors[static_cast<std::size_t>(r)];
    const bool own = r == fault.rank;
    if (own && fault.kind == Kind::kLeaves) continue;
    EXPECT_NE(error, "") << "rank " << r << " came to its end";
    if (own || fault.expected().all_say) {
      EXPECT_SAYS(error, fault.expected().says);
    }
    if (!own) {
      EXPECT_SAYS(error, rank_of_fault);
      EXPECT_SAYS(error, "rank " + std::to_string(r));
      EXPECT_SAYS(error, fault.expected().waits ? "" : "another rank has failed");
    }
    const bool names_unit = (of_nccl && !in_start) || fault.kind == Kind::kOtherUnits;
    if (names_unit) {
      EXPECT_SAYS(error, " (in ");
    }
    EXPECT_EQ(error.find("frame #0"), std::string::npos) << error;
  }
}

struct Row {
  int faults = 0, not_reached = 0;
  double longest = 0;
  std::string own, other;  // of the last
};

TEST(DeviceFaults, EndOnEveryRankByNameAndLeaveNothingBehind) {
  const int wanted = number_of("TESSERA_TEST_FAULTS", 20);
  std::mt19937 random(static_cast<std::uint32_t>(number_of("TESSERA_TEST_SEED", 1)));
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::array<Row, kKinds> table;
  for (int i = 0; i < wanted && !HasFailure(); ++i) {
    Fault fault{.kind = static_cast<Kind>(i % kKinds)};
    const bool of_nccl = fault.kind <= Kind::kHang, of_gathers = fault.kind == Kind::kOtherUnits;
    const bool of_several = of_nccl || of_gathers || fault.kind == Kind::kOtherOrder || fault.kind == Kind::kLeaves;
    const How how{.resident = of_nccl || of_gathers || below(2) == 0,
                  .ranks = static_cast<int>(of_several ? 2 + below(2) : 1 + below(3)),
                  .checkpointing = fault.kind == Kind::kThrowsInBackward || below(2) == 0};
    fault.rank = static_cast<int>(below(how.ranks));
    Result before, run, after;
    Training(how, {}, random()).run(before);
    const auto& counts = before.counts[static_cast<std::size_t>(fault.rank)];
    fault.at = below(of_nccl                            ? counts.nccl.load()
                     : fault.kind == Kind::kOutOfMemory ? counts.allocations.load()
                     : fault.kind == Kind::kCopyFails   ? counts.copies.load()
                                                        : kSteps * kBlocks);
    SCOPED_TRACE(fmt::format("fault {}, {}", i, shown(how, fault)));
    const int threads = threads_now();
    Training(how, fault, random()).run(run);
    EXPECT_EQ(test::FakeStreams::fault(), "");
    EXPECT_TRUE(becomes_true([] { return test::fake_device_bytes() == 0; })) << test::fake_device_bytes();
    EXPECT_TRUE(becomes_true([&] { return threads_now() == threads; })) << threads_now() << " threads, not " << threads;
    EXPECT_EQ(test::FakeNccl::open_communicators(), 0);
    expect_same_weights(run, before);
    if (run.felt) expect_errors_by_name(how, fault, run);
    Training(how, {}, random()).run(after);
    for (const auto& error : before.errors) EXPECT_EQ(error, "");
    for (const auto& error : after.errors) EXPECT_EQ(error, "");
    EXPECT_EQ(before.weights[0].size(), after.weights[0].size());
    expect_same_weights(after, before);
    auto& row = table[static_cast<std::size_t>(fault.kind)];
    ++row.faults;
    row.not_reached += run.felt ? 0 : 1;
    row.longest = std::max(row.longest, run.seconds);
    row.own = run.errors[static_cast<std::size_t>(fault.rank)];
    if (how.ranks > 1) row.other = run.errors[static_cast<std::size_t>((fault.rank + 1) % how.ranks)];
  }
  if (std::getenv("TESSERA_TEST_FAULTS") == nullptr) return;
  for (int k = 0; k < kKinds; ++k) {
    const auto& row = table[static_cast<std::size_t>(k)];
    std::cout << fmt::format("{} | {} faults, {} not reached | at most {:.2f} s\n    own: {}\n    other: {}\n",
                             kExpected[k].name, row.faults, row.not_reached, row.longest, row.own, row.other);
  }
}

}  // namespace
}  // namespace tessera::fsdp::device_faults
