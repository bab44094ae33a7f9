// Launchers that meet after a failure: threads of one process here, machines in tests/process/machines_test.cc.
#include "launch/machines.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string>
#include <thread>

#include "launch/process.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using namespace std::chrono_literals;
using Machines = std::vector<int>;

class Meetings : public testing::Test {
 protected:
  Meetings() {
    const Descriptor fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd.get(), generic, size) == 0 && ::getsockname(fd.get(), generic, &size) == 0)
      port_ = ntohs(address.sin_port);
  }
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  /// Whom this machine of 0, 1 and 2 finds; none: it was left alone.
  std::future<Machines> starts(int machine, std::chrono::milliseconds patience, int restart = 1) const {
    return std::async(std::launch::async, [=, port = port_]() -> Machines {
      try {
        return meet({"127.0.0.1", port, {0, 1, 2}, machine, restart, patience});
      } catch (const Error&) {
        return {};
      }
    });
  }
  /// Connected as soon as somebody listens.
  Descriptor stranger() const {
    const sockaddr_in address = loopback(port_);
    while (true) {
      Descriptor fd(::socket(AF_INET, SOCK_STREAM, 0));
      if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
      ::usleep(1000);
    }
  }

  int port_ = 0;
};

TEST_F(Meetings, EndWhenAllAreThere) {
  const auto begin = std::chrono::steady_clock::now();
  auto two = starts(2, 60s), zero = starts(0, 60s), one = starts(1, 60s);
  for (auto* machine : {&zero, &one, &two}) EXPECT_EQ(machine->get(), (Machines{0, 1, 2}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST_F(Meetings, GoOnWithoutAMachineThatDoesNotComeInTime) {
  auto zero = starts(0, 700ms), two = starts(2, 700ms);
  EXPECT_EQ(zero.get(), (Machines{0, 2}));
  EXPECT_EQ(two.get(), (Machines{0, 2}));
}

TEST_F(Meetings, CannotBeWithoutMachineZeroWhichIsSaid) {
  try {
    meet({"127.0.0.1", port_, {0, 1}, 1, 1, 100ms});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("machine 0 does not answer at 127.0.0.1 port " + std::to_string(port_)),
              std::string::npos)
        << error.what();
  }
}

TEST_F(Meetings, CountNobodyWhoIsAtAnotherRestartNorStrangers) {
  auto zero = starts(0, 700ms);
  const Descriptor silent = stranger(), garbage = stranger(), impostor = stranger();
  const std::string text(5000, 'x'), self = "tessera launch 1 0\n";
  ASSERT_GT(::send(garbage.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
  ASSERT_GT(::send(impostor.get(), self.data(), self.size(), MSG_NOSIGNAL), 0);
  auto one = starts(1, 350ms, 2), two = starts(2, 700ms);
  EXPECT_EQ(zero.get(), (Machines{0, 2}));
  EXPECT_EQ(two.get(), (Machines{0, 2}));
  EXPECT_EQ(one.get(), Machines{});
}

TEST_F(Meetings, ForgetAMachineThatHasCalledAndGone) {
  auto zero = starts(0, 700ms);
  {
    const Descriptor one = stranger();
    const std::string call = "tessera launch 1 1\n";
    ASSERT_GT(::send(one.get(), call.data(), call.size(), MSG_NOSIGNAL), 0);
    std::this_thread::sleep_for(100ms);
  }
  auto two = starts(2, 700ms);
  EXPECT_EQ(zero.get(), (Machines{0, 2}));
  EXPECT_EQ(two.get(), (Machines{0, 2}));
}

}  // namespace
}  // namespace tessera::launch
