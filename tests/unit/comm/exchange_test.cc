// What ranks tell each other through a store that torchrun keeps while it starts them again and again.
#include "comm/rendezvous/exchange.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

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

}  // namespace
}  // namespace tessera::comm
