#include "base/secret.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
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

}  // namespace
}  // namespace tessera
