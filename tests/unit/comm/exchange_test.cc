// What ranks tell each other through a store that torchrun keeps while it starts them again and again.
#include "comm/rendezvous/exchange.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/program.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using Texts = std::vector<std::string>;

class Exchanges : public ::testing::Test {
 protected:
  Exchanges() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  void leave_behind(int rank, const std::string& text) { store_->set(key(rank), {text.begin(), text.end()}); }
  bool has_text_of(int rank) { return store_->check({key(rank)}); }
  Texts exchange(int rank, const std::string& mine, std::chrono::milliseconds timeout = 20s) const {
    return exchange_texts({.store = {"127.0.0.1", store_->getPort()},
                           .store_is_there = true,
                           .rank = rank,
                           .size = 2,
                           .prefix = kPrefix,
                           .is_genuine = [](int, const std::string&) { return true; },
                           .timeout = timeout},
                          mine);
  }

 private:
  static constexpr const char* kPrefix = "exchange/";
  static std::string key(int rank) { return kPrefix + std::to_string(rank); }
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

TEST_F(Exchanges, TakeNoTextOfAProcessThatHasEnded) {
  for (const std::string attempt : {"first", "second"}) {
    for (const int rank : {0, 1}) leave_behind(rank, "killed before the " + attempt);
    auto late = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(300ms);
      return exchange(1, attempt + " of 1");
    });
    const Texts expected = {attempt + " of 0", attempt + " of 1"};
    EXPECT_EQ(exchange(0, attempt + " of 0"), expected);
    EXPECT_EQ(late.get(), expected);
    EXPECT_FALSE(has_text_of(0) || has_text_of(1));
  }
}

TEST_F(Exchanges, NameARankOfWhichOnlyAnOldTextIsThere) {
  leave_behind(1, "killed");
  try {
    exchange(0, "here", 1s);
    FAIL();
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks are missing: 1."), std::string::npos) << error.what();
    EXPECT_EQ(error.rank, 1);
  }
}

/// What a rank is told that asks a store which does not answer, within the second that it waits.
std::string told_by_silence(const Exchange& exchange) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    exchange_texts(exchange, "here");
    return "nothing";
  } catch (const CommError& error) {
    EXPECT_LT(std::chrono::steady_clock::now() - begin, exchange.timeout + 5s);  // libtorch writes its first backtrace
    EXPECT_EQ(error.rank, 0);
    return error.what();
  }
}

Exchange one_of_three(int rank, int port, std::chrono::milliseconds timeout) {
  return {.store = {"127.0.0.1", port},
          .rank = rank,
          .size = 3,
          .prefix = "exchange/",
          .is_genuine = [](int, const std::string&) { return true; },
          .timeout = timeout};
}

TEST(StoreThatDoesNotAnswer, IsNamedWhereItNeverDid) {
  const Listener silent = listen_at({"127.0.0.1", 0});  // the system takes its connections
  Exchange exchange = one_of_three(1, silent.port, 1s);
  const std::string place = "127.0.0.1:" + std::to_string(silent.port);
  EXPECT_SAYS(told_by_silence(exchange), "rank 1: connect: the store of rank 0 at " + place);
  exchange.store_is_there = true;
  exchange.rank = 0;
  EXPECT_SAYS(told_by_silence(exchange), "rank 0: connect: torchrun's store at " + place);
}

/// Rank 2 does not come, so rank 1 waits when rank 0 is stopped, or has not yet come itself.
TEST(StoreThatDoesNotAnswer, IsNamedWhereRankZeroIsStopped) {
  for (const auto begun : {0ms, 300ms}) {
    const int port = listen_at({"127.0.0.1", 0}).port;
    const pid_t rank_0 = ::fork();
    if (rank_0 == 0) {
      told_by_silence(one_of_three(0, port, 60s));
      ::_exit(1);
    }
    connect_before({"127.0.0.1", port}, std::chrono::steady_clock::now() + 20s);
    if (begun == 0ms) ::kill(rank_0, SIGSTOP);
    auto said = std::async(std::launch::async, [port] { return told_by_silence(one_of_three(1, port, 1s)); });
    std::this_thread::sleep_for(begun);
    ::kill(rank_0, SIGSTOP);
    EXPECT_SAYS(said.get(), "kill -CONT");
    ::kill(rank_0, SIGKILL);
    ::waitpid(rank_0, nullptr, 0);
  }
}

}  // namespace
}  // namespace tessera::comm
