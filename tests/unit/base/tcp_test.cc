// Connections by names: that lead nowhere yet, or to an address that swallows what is sent there.
#include "base/tcp.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "support/few_files.h"
#include "tessera/base/error.h"

namespace {

/// A name and its addresses, which it has after so many questions.
struct Name {
  std::vector<std::string> addresses;
  int questions_before = 0;
};
std::map<std::string, Name> names;

}  // namespace

// Instead of the C library's, in this program.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const auto known = names.find(name);
  if (known == names.end()) return real(name, service, hints, found);
  if (known->second.questions_before-- > 0) return EAI_AGAIN;
  for (const std::string& address : known->second.addresses) {
    if (const int error = real(address.c_str(), service, hints, found); error != 0) return error;
    while (*found != nullptr) found = &(*found)->ai_next;
  }
  return known->second.addresses.empty() ? EAI_NONAME : 0;
}

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class HostNames : public testing::Test {
 protected:
  ~HostNames() override { names.clear(); }
};

TEST_F(HostNames, ThatLeadNowhereYetAreAskedForAgain) {
  const Listener listener = listen_at({"127.0.0.1", 0});
  names["starts.later"] = {{"127.0.0.1"}, 2};
  EXPECT_GE(connect_before({"starts.later", listener.port}, Clock::now() + 20s).get(), 0);
}

TEST_F(HostNames, ThatLeadNowhereAtTheDeadlineAreNamedWithTheReason) {
  names["never"] = {};
  const auto begin = Clock::now();
  try {
    connect_before({"never", 1}, begin + 300ms);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(std::string(error.what()), std::string("the address of 'never': ") + ::gai_strerror(EAI_NONAME));
  }
  EXPECT_GE(Clock::now() - begin, 300ms);
}

TEST_F(HostNames, OfSeveralAddressesOneThatSwallowsAllLeavesTimeForTheNext) {
  std::optional<Listener> answers;
  const Descriptor silent(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  int bound = -1;
  for (int attempt = 0; attempt < 50 && bound != 0; ++attempt) {  // a port may be somebody's at the other address
    answers.emplace(listen_at({"127.0.0.2", 0}));
    address.sin_port = htons(static_cast<std::uint16_t>(answers->port));
    bound = ::bind(silent.get(), generic, sizeof(address));
  }
  ASSERT_EQ(bound, 0);
  ASSERT_EQ(::listen(silent.get(), 0), 0);
  std::vector<Descriptor> queue;  // it takes a few, and nobody accepts them
  for (int i = 0; i < 4; ++i) {
    queue.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(queue.back().get(), generic, sizeof(address));
  }
  names["two.addresses"] = {{"127.0.0.1", "127.0.0.2"}};
  const Descriptor socket = connect_before({"two.addresses", answers->port}, Clock::now() + 1s);
  EXPECT_EQ(peer_address(socket), "127.0.0.2");
}

TEST(Connecting, WithoutADescriptorIsAnErrorAtOnce) {
  const Listener listener = listen_at({"127.0.0.1", 0});
  const auto begin = Clock::now();
  const test::FewFiles none(0);
  try {
    connect_before({"127.0.0.1", listener.port}, begin + 20s);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::too_many_files_open);
  }
  EXPECT_LT(Clock::now() - begin, 10s);
}

/// A network whose only port is the one that is called.
bool enter_a_network_of_one_port(int port) {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const Descriptor any(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << port << " " << port << std::flush;
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0 && first == port;
}

TEST(Connecting, ToOneselfIsNoConnection) {
  constexpr int kPort = 40000, kSkipped = 77;
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!enter_a_network_of_one_port(kPort)) ::_exit(kSkipped);
    int code = 1;
    try {
      connect_before({"127.0.0.1", kPort}, Clock::now() + 300ms);
    } catch (const std::system_error& error) {
      code = error.code() == std::errc::connection_refused ? 0 : 2;
    }
    try {
      listen_at({"127.0.0.1", kPort});
    } catch (const std::system_error&) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "needs root and a network of its own";
  EXPECT_EQ(status, 0);
}

TEST(KeepAlive, IsFiveSecondsOrWhatIsGiven) {
  EXPECT_EQ(keep_alive_time(), 5s);
  ::setenv("TESSERA_KEEPALIVE_S", "30", 1);
  EXPECT_EQ(keep_alive_time(), 30s);
  for (const char* wrong : {"0", "-1", "5s", "1.5", "99999"}) {
    ::setenv("TESSERA_KEEPALIVE_S", wrong, 1);
    try {
      keep_alive_time();
      ADD_FAILURE() << wrong;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(wrong), std::string::npos) << error.what();
    }
  }
  ::unsetenv("TESSERA_KEEPALIVE_S");
}

}  // namespace
}  // namespace tessera
