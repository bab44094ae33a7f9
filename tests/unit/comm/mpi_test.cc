// MPI as what moves bytes between hosts: the suite of every backend and the faults under each mpirun that is installed,
// and with an MPI of our own what no real one does at will.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "comm/hosts/transport_mpi.h"
#include "comm/rendezvous/launched_mpi.h"
#include "tessera/base/error.h"
#include "unit/comm/bodies.h"
#include "unit/comm/processes.h"

namespace tessera::comm::testing {
namespace {

/// Moves a message on by one of `steps` each time somebody calls it.
class SlowMpi : public MpiLibrary {
 public:
  std::string version() const override { return "Slow MPI 1"; }
  bool is_in_use() const override { return in_use; }
  void start() override {
    if (!starts) std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int largest_tag() const override { return 5; }
  void all_gather(const void*, void*, int) override {}
  Request send(int, const void*, int, int tag) override { return last_tag = tag, ++calls; }
  Request receive(int, void*, int, int tag) override { return last_tag = tag, ++calls; }
  bool test(Request&) override {
    for (; !returns; std::this_thread::sleep_for(std::chrono::milliseconds(1))) is_held = true;
    return ++calls, --steps <= 0;
  }
  void progress() override { ++calls, --steps; }
  void finish() override { ++finishes, calls = 0; }

  bool in_use = false, starts = true;
  std::atomic<bool> returns = true, is_held = false;
  std::atomic<int> steps = 1, calls = 0, last_tag = -1, finishes = 0;
};

constexpr std::chrono::milliseconds kLong{10'000};

/// Both stay until the process ends.
struct Started {
  SlowMpi& mpi;
  std::shared_ptr<MpiSession>& session;
};
Started started() {
  auto library = std::make_unique<SlowMpi>();
  SlowMpi& mpi = *library;
  return {mpi, *new std::shared_ptr<MpiSession>(start_mpi(std::move(library), 0, 1, kLong))};
}

LanePlaces alone() {
  return {.host = 0, .controls = {nullptr}, .ranks = {0}, .name = "", .key = "", .address = "", .timeout = kLong};
}

TEST(Mpi, AWaitEndsWithTheMessageOrWhenItIsInterrupted) {
  const auto [mpi, session] = started();
  const auto transport = make_mpi_engine(session)->connect(alone());
  mpi.steps = 1'000'000'000;
  const auto message = transport->send(0, nullptr, 0, 0);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    transport->interrupt();
  });
  EXPECT_FALSE(transport->wait(*message));
  other.join();
  mpi.steps = 100;
  EXPECT_TRUE(transport->wait(*message));
}

/// What MPI has taken from a rank that does something else then, its peer waits for.
TEST(Mpi, MessagesMoveOnWhileNobodyWaits) {
  const auto [mpi, session] = started();
  const auto transport = make_mpi_engine(session)->connect(alone());
  const auto message = transport->send(0, nullptr, 0, 0);
  EXPECT_TRUE(transport->wait(*message));
  mpi.steps = 20;
  for (int looks = 0; looks < 1000 && mpi.steps > 0; ++looks) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_LE(mpi.steps, 0);
}

/// MPI does not return from asking for this message.
std::unique_ptr<Transport::Message> held_message(SlowMpi& mpi, Transport& transport) {
  mpi.steps = 1'000'000'000;
  mpi.returns = false;
  auto message = transport.receive(0, nullptr, 0, 0);
  transport.interrupt();
  EXPECT_FALSE(transport.wait(*message));
  while (!mpi.is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return message;
}

/// As Open MPI's does not when a peer is gone (Note [MPI]). Whoever waits hears of the peer's end from elsewhere.
TEST(Mpi, NobodyWaitsLongForACallThatNeverReturns) {
  const auto [mpi, session] = started();
  const auto transport = make_mpi_engine(session)->connect(alone());
  const auto start = std::chrono::steady_clock::now();
  auto message = held_message(mpi, *transport), another = transport->receive(0, nullptr, 0, 0);
  transport->interrupt();
  EXPECT_FALSE(transport->wait(*another));
  message.reset();
  another.reset();
  EXPECT_THROW(transport->send(0, nullptr, 0, 0), std::runtime_error);
  finish_mpi(0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_EQ(mpi.finishes, 0);
}

/// Whoever gives it up frees the message's memory next.
TEST(Mpi, ACallThatGoesOnIsWaitedForBeforeAMessageIsGivenUp) {
  const auto [mpi, session] = started();
  const auto transport = make_mpi_engine(session)->connect(alone());
  auto message = held_message(mpi, *transport);
  std::thread other([&mpi = mpi] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    mpi.returns = true;
  });
  const int calls = mpi.calls;
  message.reset();
  EXPECT_EQ(mpi.calls, calls + 1);
  other.join();
}

TEST(Mpi, AfterAMessageWasGivenUpNothingIsAskedOfItAnyMore) {
  const auto [mpi, session] = started();
  const auto transport = make_mpi_engine(session)->connect(alone());
  transport->receive(0, nullptr, 0, 0).reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const int calls = mpi.calls;
  EXPECT_THROW(transport->send(0, nullptr, 0, 0), std::runtime_error);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(mpi.calls, calls);
}

/// As its launcher demands. Where a rank has failed the others may be gone, with whom it would wait for ever.
TEST(Mpi, IsFinishedOnceByAProcessThatEndsWell) {
  const auto& failed = started().mpi;
  finish_mpi(3);
  EXPECT_EQ(failed.finishes, 0);
  const auto& mpi = started().mpi;
  finish_mpi(0);
  EXPECT_EQ(mpi.finishes, 1);
  finish_mpi(0);
  EXPECT_EQ(mpi.finishes, 1);
  EXPECT_EQ(mpi.calls, 0);  // since
  EXPECT_EQ(failed.finishes, 0);
}

TEST(Mpi, EachGroupHasTagsOfItsOwnWhileThereAreAny) {
  const auto [mpi, session] = started();
  const auto engine = make_mpi_engine(session);
  for (int group = 0; group < 3; ++group) {
    const auto transport = engine->connect(alone());
    for (int tag = 0; tag < 2; ++tag) {
      EXPECT_TRUE(transport->wait(*transport->send(0, nullptr, 0, tag)));
      EXPECT_EQ(mpi.last_tag, group * 2 + tag);
    }
  }
  EXPECT_THROW(engine->connect(alone()), std::runtime_error);
}

template <class Wrong>
std::string words_of(const Wrong& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Mpi, WhatIsWrongWithItIsSaid) {
  const auto start = [](auto change, int rank, int size) {
    auto library = std::make_unique<SlowMpi>();
    change(*library);
    return words_of([&] { start_mpi(std::move(library), rank, size, std::chrono::milliseconds(100)); });
  };
  EXPECT_NE(start([](SlowMpi&) {}, 1, 2)
                .find("(Slow MPI 1) says that this is process 0 of 1, its launcher's variables "
                      "say rank 1 of 2"),
            std::string::npos);
  EXPECT_NE(start([](SlowMpi& mpi) { mpi.in_use = true; }, 0, 1).find("TESSERA_TRANSPORT=gloo"), std::string::npos);
  EXPECT_NE(start([](SlowMpi& mpi) { mpi.starts = false; }, 0, 1).find("has not started within 100 ms"),
            std::string::npos);
  const std::string missing = words_of([] { open_mpi_library({"libtessera_no_mpi.so.1", "libm.so.6"}); });
  EXPECT_NE(missing.find("libtessera_no_mpi.so.1: cannot open"), std::string::npos) << missing;
  EXPECT_NE(missing.find("libm.so.6 is ''"), std::string::npos) << missing;
}

class WithVariable {
 public:
  WithVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~WithVariable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Mpi, IsChosenByTheLauncherOrByName) {
  const RankEnvironment environment{.found = true, .family = "Open MPI", .rank = 0, .world_size = 2, .job_key = ""};
  EXPECT_EQ(launched_mpi(environment, kLong), nullptr);  // no variable of a launcher is set here
  {
    const WithVariable mpi("TESSERA_TRANSPORT", "mpi");
    const std::string error = words_of([&] { launched_mpi(environment, kLong); });
    EXPECT_NE(error.find("none of OMPI_COMM_WORLD_SIZE, PMI_SIZE and PMIX_RANK is set"), std::string::npos) << error;
  }
  const WithVariable size("OMPI_COMM_WORLD_SIZE", "2");
  {
    const WithVariable gloo("TESSERA_TRANSPORT", "gloo");
    EXPECT_EQ(launched_mpi(environment, kLong), nullptr);
  }
  RankEnvironment torchrun = environment;
  torchrun.family = "torchrun";
  EXPECT_EQ(launched_mpi(torchrun, kLong), nullptr);
  const WithVariable wrong("TESSERA_TRANSPORT", "ucx");
  const std::string error = words_of([&] { launched_mpi(environment, kLong); });
  EXPECT_NE(error.find("TESSERA_TRANSPORT is 'ucx': gloo or mpi"), std::string::npos) << error;
}

/// With --mpi=pmi2 it sets PMI's variables, which say nothing of hosts.
TEST(Mpi, SrunSaysWhereItsRanksAre) {
  const WithVariable rank("PMI_RANK", "3"), size("PMI_SIZE", "4"), id("SLURM_LOCALID", "1");
  {
    const WithVariable nodes("SLURM_NNODES", "2");
    EXPECT_EQ(read_rank_environment().local_world_size, 0);  // not all are here
    EXPECT_EQ(read_rank_environment().local_rank, 1);
  }
  const WithVariable nodes("SLURM_NNODES", "1");
  EXPECT_EQ(read_rank_environment().local_world_size, 4);
}

/// Under mpirun of Debian's packages, and of TESSERA_TEST_MPIRUN with its folder of libraries beside it.
class Mpirun : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    mpirun_ = GetParam();
    if (mpirun_.empty()) {
      const char* other = std::getenv("TESSERA_TEST_MPIRUN");
      if (other == nullptr) GTEST_SKIP() << "TESSERA_TEST_MPIRUN names no further mpirun";
      mpirun_ = other;
      libraries_ = {"LD_LIBRARY_PATH=" + std::filesystem::path(other).parent_path().parent_path().string() + "/lib"};
    }
    if (!std::filesystem::exists(mpirun_)) GTEST_SKIP() << mpirun_ << " is not installed";
  }
  std::vector<int> run(const std::string& body, const std::vector<int>& hosts,
                       const std::vector<std::string>& environment = {}) const {
    Job job{.body = body, .environment = libraries_, .hosts = hosts};
    job.environment.insert(job.environment.end(), environment.begin(), environment.end());
    return run_under_mpirun(mpirun_, job);
  }

  std::string mpirun_;
  std::vector<std::string> libraries_;
};
INSTANTIATE_TEST_SUITE_P(Comm, Mpirun, ::testing::Values("/usr/bin/mpirun.mpich", "/usr/bin/mpirun.openmpi", ""),
                         [](const auto& launcher) {
                           return launcher.param.empty() ? "other"
                                                         : launcher.param.substr(launcher.param.find('.') + 1);
                         });

TEST_P(Mpirun, DoesTheWholeSuite) {
  EXPECT_EQ(run("Suite", {2, 2}), std::vector<int>(4, 0));
  EXPECT_EQ(run("Suite", {1, 2, 1}), std::vector<int>(4, 0));
}

TEST_P(Mpirun, MismatchesAreReportedByAllRanks) {
  for (const char* body : {"DifferentOperations", "DifferentSizes", "MismatchInTheBackground"}) {
    EXPECT_EQ(run(body, {2, 2}), std::vector<int>(4, 0)) << body;
  }
}

TEST_P(Mpirun, AKilledRankIsNoticedWithinASecond) {
  EXPECT_EQ(run("KilledRank", {2, 1}), (std::vector{0, -1, 0}));
}

/// Open MPI's TCP then waits inside a call for a lock that it holds itself.
TEST_P(Mpirun, ARankThatIsKilledInTheMiddleOfAMessageIsNoticed) {
  if (GetParam() == "/usr/bin/mpirun.mpich") GTEST_SKIP() << "UCX, which Debian's MPICH uses, may end the others then";
  EXPECT_EQ(run("KilledInTheMiddleOfAMessage", {1, 1, 1}), (std::vector{0, -1, 0}));
}

TEST_P(Mpirun, ARankThatIsMissingOrLeavesIsNamed) {
  EXPECT_EQ(run("MissingRank", {1, 1}, {"TESSERA_COMM_TIMEOUT_S=0.5"}), std::vector<int>(2, 0));
  EXPECT_EQ(run("RankLeavesEarly", {1, 1}), std::vector<int>(2, 0));
}

}  // namespace
}  // namespace tessera::comm::testing
