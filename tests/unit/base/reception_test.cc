// Calls between ranks beside strangers that call, too.
#include "base/reception.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <system_error>
#include <vector>

#include "support/few_files.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

const std::string kKey = "the session's key";
const Call kCall{42, 1, 0};
constexpr int kProcesses = 3;

Deadline in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class Listening : public ::testing::Test {
 protected:
  Listening() {
    Listener listener = listen_at({"127.0.0.1", 0});
    port_ = listener.port;
    reception_ = std::make_unique<Reception>(std::move(listener), 0, kProcesses, kKey);
  }
  Descriptor stranger() const { return connect_before({"127.0.0.1", port_}, in(20s)); }
  std::future<Descriptor> await(const Call& call) {
    return std::async(std::launch::async, [this, call] { return reception_->await(call, in(20s)); });
  }
  std::error_code refusal(const Call& call, const std::string& key) const {
    try {
      introduce(stranger(), call, key, in(20s));
    } catch (const std::system_error& error) {
      return error.code();
    }
    return {};
  }

  int port_ = 0;
  std::unique_ptr<Reception> reception_;
};

TEST_F(Listening, KnowsItsCallersByWhatTheyProve) {
  auto answer = await(kCall);
  const Descriptor socket = stranger();
  introduce(socket, kCall, kKey, in(20s));
  const Descriptor accepted = answer.get();
  send_all(socket, "hello", 5, in(20s));
  char text[5];
  receive_all(accepted, text, sizeof(text), in(20s));
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST_F(Listening, KeepsACallUntilItIsAskedFor) {
  auto first = await(kCall);
  const Call other{43, 2, 0};
  const Descriptor early = stranger(), late = stranger();
  introduce(early, other, kKey, in(20s));
  introduce(late, kCall, kKey, in(20s));
  first.get();
  EXPECT_GE(reception_->await(other, in(0s)).get(), 0);
}

/// The other end has closed it.
bool is_closed(const Descriptor& socket) {
  char byte = 0;
  try {
    receive_all(socket, &byte, 1, in(0s));
  } catch (const std::system_error& error) {
    return error.code() == std::errc::connection_reset;
  }
  return false;
}

TEST_F(Listening, KeepsFewCallsOfOneProcessAndNoneOfOthersThanTheJobs) {
  auto answer = await(kCall);
  std::vector<Descriptor> early, foreign;
  for (std::uint64_t name = 100; name < 120; ++name) {
    introduce(early.emplace_back(stranger()), {name, 1, 0}, kKey, in(20s));
    introduce(foreign.emplace_back(stranger()), {name, kProcesses + static_cast<int>(name), 0}, kKey, in(20s));
  }
  const Descriptor other = stranger(), awaited = stranger();
  introduce(other, {100, 2, 0}, kKey, in(20s));
  introduce(awaited, kCall, kKey, in(20s));
  EXPECT_GE(answer.get().get(), 0);
  EXPECT_EQ(std::count_if(early.begin(), early.end(), is_closed), 16);
  EXPECT_EQ(std::count_if(foreign.begin(), foreign.end(), is_closed), 20);
  EXPECT_GE(reception_->await({100, 2, 0}, in(0s)).get(), 0) << "one process does not take another's room";
}

/// One after the other they would take minutes.
TEST_F(Listening, HearsARankBesideManyWhoSayNothingOrNonsense) {
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(stranger());
    if (i % 3 == 1) send_all(strangers.back(), "GET / HTTP/1.0\r\n", 16, in(20s));
    if (i % 3 == 2) send_all(strangers.back(), std::string(1000, '\xff').data(), 1000, in(20s));
  }
  auto answer = await(kCall);
  const Descriptor socket = stranger();
  introduce(socket, kCall, kKey, in(20s));
  EXPECT_GE(answer.get().get(), 0);
}

TEST_F(Listening, TurnsAwayWhoeverDoesNotKnowTheKey) {
  auto answer = await(kCall);
  EXPECT_EQ(refusal(kCall, "another key"), std::errc::connection_reset);
  EXPECT_EQ(refusal({42, 1, 5}, kKey), std::errc::connection_reset) << "meant for another rank";
  const Descriptor socket = stranger();
  introduce(socket, kCall, kKey, in(20s));
  EXPECT_GE(answer.get().get(), 0);
}

/// Descriptors of callers that have proven nothing serve those that can.
TEST_F(Listening, HearsARankThoughStrangersHoldAllDescriptors) {
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(stranger());
  const Descriptor socket = stranger();
  const test::FewFiles three(3);
  auto answer = await(kCall);
  introduce(socket, kCall, kKey, in(20s));
  EXPECT_GE(answer.get().get(), 0);
}

double thread_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST_F(Listening, WaitsQuietlyForADescriptorAndSaysSoOnce) {
  const Descriptor socket = stranger();
  testing::internal::CaptureStderr();
  {
    const test::FewFiles none(0);
    const double before = thread_seconds();
    EXPECT_THROW(reception_->await(kCall, in(1s)), std::system_error);
    EXPECT_LT(thread_seconds() - before, 0.1);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("ulimit -n"), std::string::npos) << said;
  EXPECT_EQ(said.find("ulimit -n"), said.rfind("ulimit -n")) << said;
  auto answer = await(kCall);
  introduce(socket, kCall, kKey, in(20s));
  EXPECT_GE(answer.get().get(), 0);
}

TEST(Introduce, DoesNotTakeASpeakerOfNonsenseForARank) {
  const Listener listener = listen_at({"127.0.0.1", 0});
  const Descriptor socket = connect_before({"127.0.0.1", listener.port}, in(20s));
  const Descriptor other = accept_waiting(listener);
  send_all(other, std::string(200, 'x').data(), 200, in(20s));
  try {
    introduce(socket, kCall, kKey, in(20s));
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::permission_denied);
  }
}

TEST(ListenAt, TakesNoCallsForOtherAddresses) {
  const Listener listener = listen_at({listening_address({"127.0.0.1", 29500}), 0});
  EXPECT_GE(connect_before({"127.0.0.1", listener.port}, in(20s)).get(), 0);
  EXPECT_THROW(connect_before({"127.0.0.2", listener.port}, in(0s)), std::system_error);
}

}  // namespace
}  // namespace tessera
