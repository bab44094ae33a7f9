#include "comm/hosts/wire.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <system_error>

#include "comm/shm/mapping.h"
#include "support/lonely_host.h"

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

}  // namespace
}  // namespace tessera::comm
