// Where a rank listens, and what a host is told about others that were started otherwise.
#include "comm/rendezvous/own_address.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstdlib>
#include <memory>

#include "comm/rendezvous/card.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

/// For the length of a test.
class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~SetVariable() { ::unsetenv(name_); }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
};

const Endpoint kHere{"127.0.0.1", 29500};

template <class Call>
std::string config_error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(OwnAddress, IsThatOnTheWayToTheMeetingPlace) {
  EXPECT_EQ(own_address_for(kHere).listens, "127.0.0.1");
  EXPECT_EQ(own_address_for(kHere).tells, "127.0.0.1");
}

TEST(OwnAddress, IsThatOfTheInterfaceThatIsNamed) {
  for (const Interface& one : interfaces_of_host()) {
    for (const char* name : {"TESSERA_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
      const SetVariable interface(name, "nowhere7," + one.name);
      EXPECT_EQ(own_address_for(kHere).listens, one.address);
      EXPECT_EQ(own_address_for(kHere).tells, one.address);
    }
  }
}

TEST(OwnAddress, IsTheOneThatIsGivenBeforeAnyInterface) {
  const SetVariable interface("TESSERA_SOCKET_IFNAME", "nowhere7"), address("TESSERA_ADDRESS", "127.0.0.3");
  EXPECT_EQ(own_address_for(kHere).tells, "127.0.0.3");
}

/// Also the second one of an interface, and in another form than the system's.
TEST(OwnAddress, MayBeAnyOfThisHosts) {
  ifaddrs* all = nullptr;
  ASSERT_EQ(::getifaddrs(&all), 0);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const std::string address = numeric(one->ifa_addr, sizeof(sockaddr_in));
    const SetVariable given("TESSERA_ADDRESS", address);
    EXPECT_EQ(own_address_for(kHere).tells, address);
  }
  const SetVariable loopback("TESSERA_ADDRESS", "127.1");
  EXPECT_EQ(own_address_for(kHere).tells, "127.0.0.1");
}

TEST(OwnAddress, ThatIsNotThisHostsIsRefusedWithThoseThatAre) {
  {
    const SetVariable interface("GLOO_SOCKET_IFNAME", "nowhere7");
    EXPECT_NE(config_error_of([] { own_address_for(kHere); }).find("GLOO_SOCKET_IFNAME is 'nowhere7'"),
              std::string::npos);
  }
  const SetVariable address("TESSERA_ADDRESS", "192.0.2.77");
  const std::string text = config_error_of([] { own_address_for(kHere); });
  EXPECT_NE(text.find("'192.0.2.77': that is no address of this host"), std::string::npos) << text;
  for (const Interface& one : interfaces_of_host()) EXPECT_NE(text.find(one.address), std::string::npos) << text;
}

TEST(OwnAddress, PortsCannotBeChosenWhichIsSaidWithWhatToDo) {
  const SetVariable ports("TESSERA_PORTS", "30000-30999");
  const std::string text = config_error_of([] { own_address_for(kHere); });
  EXPECT_NE(text.find("TESSERA_PORTS is '30000-30999'"), std::string::npos) << text;
  EXPECT_NE(text.find("ip_local_port_range"), std::string::npos) << text;
}

TEST(Cards, OfAnotherBuildOrAnotherNumberOfRanksAreNamed) {
  std::vector<Card> cards(3);
  for (Card& card : cards) card.world_size = 3;
  EXPECT_EQ(config_error_of([&] { check_cards(cards, 0); }), "");
  cards[2].world_size = 4;
  EXPECT_NE(
      config_error_of([&] { check_cards(cards, 0); }).find("rank 2 was started as one of 4 ranks, rank 0 as one of 3"),
      std::string::npos);
  cards[2].world_size = 3;
  cards[1].build = "tessera 9.9.9 with libtorch 2.11.0";
  const std::string text = config_error_of([&] { check_cards(cards, 0); });
  EXPECT_NE(text.find("rank 1 runs tessera 9.9.9 with libtorch 2.11.0, rank 0 runs " + this_build()), std::string::npos)
      << text;
}

TEST(Cards, SayWhatTheyWereMadeFrom) {
  const Card card{.world_size = 7, .host = "h", .listens = {"127.0.0.1", 1234}, .nonce = new_nonce()};
  const auto read = read_card(card.to_text("secret", "place"), "secret", "place");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->build, this_build());
  EXPECT_EQ(read->world_size, 7);
  EXPECT_EQ(read->listens.port, 1234);
  EXPECT_FALSE(read_card(card.to_text("secret", "place"), "secret", "elsewhere").has_value());
}

}  // namespace
}  // namespace tessera::comm
