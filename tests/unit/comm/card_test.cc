#include "comm/rendezvous/card.h"

#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

const std::string kSecret = "a secret of sixteen or more";

std::string card_text() {
  Card card{.host = "0//boot/net:[1]", .listens = {"10.77.0.2", 4711}, .nonce = {}};
  card.nonce[31] = 0xfe;
  return card.to_text(kSecret, "tessera//0/1/2");
}

TEST(Card, IsReadAsItWasWritten) {
  const auto card = read_card(card_text(), kSecret, "tessera//0/1/2");
  ASSERT_TRUE(card);
  EXPECT_EQ(card->host, "0//boot/net:[1]");
  EXPECT_EQ(card->listens.address, "10.77.0.2");
  EXPECT_EQ(card->listens.port, 4711);
  EXPECT_EQ(card->nonce[31], 0xfe);
  EXPECT_EQ(card_text().find(kSecret), std::string::npos);
}

TEST(Card, CountsOnlyForItsRankItsRendezvousAndItsSecret) {
  EXPECT_FALSE(read_card(card_text(), kSecret, "tessera//0/0/2"));
  EXPECT_FALSE(read_card(card_text(), kSecret, "tessera/1/0/1/2"));
  EXPECT_FALSE(read_card(card_text(), "", "tessera//0/1/2"));
}

TEST(Card, IsRefusedWithAnyByteChanged) {
  const std::string text = card_text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_FALSE(read_card(changed, kSecret, "tessera//0/1/2")) << i;
    EXPECT_FALSE(read_card(text.substr(0, i), kSecret, "tessera//0/1/2")) << i;
  }
}

TEST(Card, IsRefusedWhereItIsSignedButNoCard) {
  const auto refused = [](const std::string& host, const Endpoint& listens) {
    const Card card{.host = host, .listens = listens, .nonce = {}};
    return !read_card(card.to_text("", "p"), "", "p");
  };
  EXPECT_FALSE(refused("host", {"::1", 1}));
  EXPECT_TRUE(refused("host", {"::1", 0}));
  EXPECT_TRUE(refused("host", {"::1", 65536}));
  EXPECT_TRUE(refused("host", {"somewhere.example", 1}));
  EXPECT_TRUE(refused("two\nlines", {"::1", 1}));
  for (const char* text : {"", "\n", "nonsense", "\n\n\n\n\n\n\n"}) EXPECT_FALSE(read_card(text, "", "p"));
}

}  // namespace
}  // namespace tessera::comm
