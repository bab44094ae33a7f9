// Jobs over several hosts (all played by this machine) while somebody else reaches their ports.
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/tcp.h"
#include "unit/comm/bodies.h"
#include "unit/comm/processes.h"

namespace tessera::comm::testing {
namespace {

using namespace std::chrono_literals;

Deadline soon() {
  return std::chrono::steady_clock::now() + 60s;
}

/// Whoever reaches MASTER_PORT has this.
class Stranger {
 public:
  explicit Stranger(int port) {
    connect_before({"127.0.0.1", port}, soon());
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  std::string card(int rank) {
    const auto value = store_->get(key(rank));
    return {value.begin(), value.end()};
  }
  void replace_card(int rank, const std::string& text) { store_->set(key(rank), {text.begin(), text.end()}); }
  /// Where a rank listens.
  Endpoint place(int rank) {
    std::istringstream in(card(rank));
    std::string title, build, size, host, port;
    Endpoint place;
    for (std::string* line : {&title, &build, &size, &host}) std::getline(in, *line);
    std::getline(in, place.address);
    std::getline(in, port);
    place.port = std::stoi(port);
    return place;
  }

 private:
  static std::string key(int rank) { return "tessera/0/" + std::to_string(rank); }
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

std::vector<int> all_well(int ranks) {
  return std::vector<int>(static_cast<std::size_t>(ranks), 0);
}

TEST(Strangers, WhoSayNothingDoNotDelayTheStart) {
  std::vector<Descriptor> silent;
  const auto start = std::chrono::steady_clock::now();
  const auto statuses = run_processes({.body = "Meet", .hosts = {1, 1}, .before_last = [&](int port) {
                                         Stranger stranger(port);
                                         const Endpoint place = stranger.place(0);
                                         for (int i = 0; i < 50; ++i) silent.push_back(connect_before(place, soon()));
                                       }});
  EXPECT_EQ(statuses, all_well(2));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 50s);  // two seconds for each would be 100
}

TEST(Strangers, CannotReplaceACard) {
  for (const int rank : {0, 1}) {
    for (const char* text : {"nonsense", "", "a\nb\nc\nzz"}) {
      EXPECT_EQ(run_processes({.body = "Meet",
                               .hosts = {1, 1},
                               .before_last = [&](int port) { Stranger(port).replace_card(rank, text); }}),
                all_well(2))
          << rank << text;
    }
  }
}

TEST(Strangers, WhoTakeTheSeatOfAMissingRankAreNamedWithinSeconds) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run_processes({.body = "Meet",
                           .size = 3,
                           .environment = {"EXPECT_ERROR=for rank 2 is not signed with this job's secret"},
                           .started = 2,
                           .hosts = {1, 1, 1},
                           .before_last = [](int port) { Stranger(port).replace_card(2, "nonsense"); }}),
            all_well(2));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 50s);  // the rendezvous itself waits a minute
}

TEST(Strangers, LearnNoSecret) {
  const std::string secret = "the secret of this test";
  std::string card;
  EXPECT_EQ(run_processes({.body = "Meet",
                           .environment = {"TESSERA_SECRET=" + secret},
                           .hosts = {1, 1},
                           .before_last = [&](int port) { card = Stranger(port).card(0); }}),
            all_well(2));
  EXPECT_FALSE(card.empty());
  EXPECT_EQ(card.find(secret), std::string::npos);
}

/// With a secret, a card that anybody could have made counts no more than nonsense.
TEST(Strangers, CannotSignCardsWhereThereIsASecret) {
  std::string card;
  run_processes({.body = "Meet", .hosts = {1, 1}, .before_last = [&](int port) { card = Stranger(port).card(0); }});
  EXPECT_EQ(run_processes({.body = "Meet",
                           .environment = {"TESSERA_SECRET=the secret of this test"},
                           .hosts = {1, 1},
                           .before_last = [&](int port) { Stranger(port).replace_card(0, card); }}),
            all_well(2));
}

TEST(Secret, ThatIsNotTheSameOnAllRanksIsAnError) {
  for (const char* common : {"TESSERA_SECRET=the secret of this test", "TESSERA_SECRET="}) {
    EXPECT_EQ(run_processes({.body = "Meet",
                             .environment = {common, "OTHER_SECRET=1", "EXPECT_ERROR=TESSERA_SECRET the same"},
                             .hosts = {1, 1}}),
              all_well(2));
  }
}

TEST(Secret, IsNoHindrance) {
  EXPECT_EQ(
      run_processes(
          {.body = "Suite", .size = 3, .environment = {"TESSERA_SECRET=the secret of this test"}, .hosts = {2, 1}}),
      all_well(3));
}

/// The rendezvous and the ranks listen where the others come from, and nowhere else.
TEST(Listeners, AreNotReachedByOtherAddresses) {
  EXPECT_EQ(
      run_processes(
          {.body = "Meet",
           .hosts = {1, 1},
           .before_last =
               [](int port) {
                 const Endpoint place = Stranger(port).place(0);
                 EXPECT_EQ(place.address, "127.0.0.1");
                 for (const int p : {port, place.port}) {
                   EXPECT_THROW(connect_before({"127.0.0.2", p}, std::chrono::steady_clock::now()), std::system_error)
                       << p;
                 }
               }}),
      all_well(2));
}

}  // namespace
}  // namespace tessera::comm::testing
