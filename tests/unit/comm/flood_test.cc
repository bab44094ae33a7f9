// A peer that says very much: what it says is not kept.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <system_error>
#include <thread>

#include "comm/hosts/control_store.h"
#include "comm/hosts/wire.h"
#include "comm/shm/mapping.h"
#include "support/lonely_host.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;

/// A connection whose other end repeats some bytes until nobody listens.
class Flood {
 public:
  explicit Flood(std::string words) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    ours = Descriptor(ends[0]);
    theirs_ = Descriptor(ends[1]);
    thread_ = std::thread([this, words = std::move(words)] {
      while (::send(theirs_.get(), words.data(), words.size(), MSG_NOSIGNAL) > 0) continue;
    });
  }
  ~Flood() {
    ::shutdown(theirs_.get(), SHUT_RDWR);
    thread_.join();
  }
  Descriptor ours;

 private:
  Descriptor theirs_;
  std::thread thread_;
};

TEST(Flood, OfEntriesOfTheStoreEndsTheStart) {
  std::string entry(8 + 4 + (1 << 20), '\0');
  entry[0] = 4;     // bytes of the key
  entry[6] = 0x10;  // of the value: 1 MiB
  entry.replace(8, 4, "name");
  Flood flood(entry);
  ControlStore store({nullptr, &flood.ours}, std::chrono::steady_clock::now() + 60s);
  try {
    store.get("another");
    FAIL();
  } catch (const std::system_error& e) {
    EXPECT_EQ(e.code().value(), EPROTO) << e.what();
  }
}

TEST(Flood, OfWordsBesideOperationsNamesTheRank) {
  Flood flood(std::string(4096, 'x'));
  Group group(std::make_shared<test::LonelyHost>(), map_memory(Control::bytes(1)), {0}, 0, 60s);
  std::vector<Wire::Peer> peers(2);
  peers[1] = {1, std::move(flood.ours)};
  Wire wire(group, std::move(peers), std::make_unique<test::NoTransport>(), 60s);
  const Announcement barrier{.op = Op::kBarrier};
  group.post(barrier);
  try {
    wire.meet(barrier);
    FAIL();
  } catch (const CommError& e) {
    EXPECT_EQ(e.rank, 1);
    EXPECT_NE(std::string(e.what()).find("rank 1 says "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::comm
