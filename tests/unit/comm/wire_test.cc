#include "comm/hosts/wire.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <system_error>

#include "comm/hosts/network.h"
#include "comm/shm/mapping.h"
#include "support/lonely_host.h"
#include "tessera/base/error.h"

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

}  // namespace
}  // namespace tessera::comm
