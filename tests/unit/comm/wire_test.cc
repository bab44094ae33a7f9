#include "comm/hosts/wire.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <set>
#include <system_error>
#include <thread>

#include "comm/hosts/network.h"
#include "comm/hosts/transport_gloo.h"
#include "comm/shm/mapping.h"
#include "support/lonely_host.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::comm {
namespace {

TEST(Wire, ThatMayOpenNoFileIsAnError) {
  Group group(std::make_shared<test::LonelyHost>(), map_memory(Control::bytes(1)), {0}, 0, std::chrono::seconds(60));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  std::error_code code;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  try {
    const Wire wire(group, {}, std::make_unique<test::NoTransport>(), std::chrono::seconds(60));
  } catch (const std::system_error& error) {
    code = error.code();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code, std::errc::too_many_files_open);
}

/// As libtorch says it: with its own functions behind the first line.
class NoEngine : public Engine {
 public:
  std::unique_ptr<Transport> connect(const LanePlaces&) override { TORCH_CHECK(false, "no way leads there"); }
};

TEST(Network, SaysWhyThereIsNoConnectionInOneLine) {
  Network network(Listener(), {{"192.0.2.1", 1}}, 0, "key", Network::Times(), std::make_unique<NoEngine>());
  try {
    network.open_lane({0}, "world");
    FAIL();
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("hosts' ranks (0): no way leads there. Hosts must"), std::string::npos) << text;
  }
}

/// Where gloo listens: a socket of this process that does, and that is not in `before`.
Endpoint listener_beside(const std::set<int>& before) {
  for (int fd = 0; fd < 1000; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (before.contains(fd) || ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
      continue;
    sockaddr_in address{};
    size = sizeof(address);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    return {"127.0.0.1", ntohs(address.sin_port)};
  }
  return {};
}

/// A transport of two hosts of this process, by one end of a connection between them.
std::unique_ptr<Transport> join_two(Engine& engine, int host, const Descriptor& control) {
  LanePlaces lane{.host = host,
                  .controls = {nullptr, nullptr},
                  .ranks = {0, 1},
                  .name = "world",
                  .key = "key",
                  .address = "127.0.0.1",
                  .timeout = std::chrono::seconds(20)};
  lane.controls[static_cast<std::size_t>(1 - host)] = &control;
  return engine.connect(lane);
}

// The end of a rank's control connection interrupts those that wait for its last message, while that arrives.
TEST(Gloo, TheLastMessageOfOneThatLeavesIsDone) {
  const auto here = make_gloo_engine(), there = make_gloo_engine();
  for (int round = 0; round < 20; ++round) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const Descriptor controls[] = {Descriptor(ends[0]), Descriptor(ends[1])};
    const std::byte sent{7};
    std::thread leaver([&] {
      const auto transport = join_two(*there, 1, controls[1]);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const auto message = transport->send(0, &sent, 1, 0);
      while (!transport->wait(*message)) continue;
    });
    const auto transport = join_two(*here, 0, controls[0]);
    std::atomic<bool> over = false;
    std::thread interrupter([&] {
      while (!over) transport->interrupt();
    });
    std::byte received{};
    std::string failure;
    try {
      const auto message = transport->receive(1, &received, 1, 0);
      while (!transport->wait(*message)) continue;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    over = true;
    interrupter.join();
    leaver.join();
    ASSERT_EQ(failure, "") << "round " << round;
    EXPECT_EQ(received, sent);
  }
}

TEST(Gloo, TakesMoreStrangersThanTheProcessMayOpenFilesAtFirst) {
  constexpr rlim_t kFew = 200;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 1000) GTEST_SKIP() << "ulimit -Hn allows no more";
  std::set<int> known;
  for (int fd = 0; fd < 1000; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) known.insert(fd);
  const rlimit few{kFew, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  connect();  // a world of one, which begins as every rank does
  const auto transport = make_gloo_engine()->connect({.host = 0,
                                                      .controls = {nullptr},
                                                      .ranks = {0},
                                                      .name = "world",
                                                      .key = "key",
                                                      .address = "127.0.0.1",
                                                      .timeout = std::chrono::seconds(20)});
  const Endpoint place = listener_beside(known);
  std::vector<Descriptor> strangers;
  for (rlim_t i = 0; i < kFew; ++i)
    strangers.push_back(connect_before(place, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
  EXPECT_EQ(strangers.size(), kFew);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace tessera::comm
