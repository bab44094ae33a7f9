#include "comm/rendezvous/secret.h"

#include <gtest/gtest.h>

#include "comm/rendezvous/card.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

TEST(Hmac, EqualsTheStandardsExamples) {  // RFC 4231, cases 1 to 3 and 6
  const auto mac = [](const std::string& key, const std::string& text) { return to_hex(hmac_sha256(key, text)); };
  EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_NE(mac("", "text"), mac("Jefe", "text"));  // no key is a key of its own, not the one before
}

TEST(Secret, IsRefusedWhereItCouldBeGuessed) {
  ::setenv("TESSERA_SECRET", "short", 1);
  EXPECT_THROW(job_secret(), ConfigError);
  ::setenv("TESSERA_SECRET", "0123456789abcdef", 1);
  EXPECT_EQ(job_secret(), "0123456789abcdef");
  ::unsetenv("TESSERA_SECRET");
  EXPECT_EQ(job_secret(), "");
}

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
