#include "comm/rendezvous/own_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <system_error>

#include "comm/rendezvous/environment.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

std::string list_of(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& one : interfaces)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", one.name, one.address);
  return text;
}

bool is_own(const std::string& address) {
  try {
    listen_at({address, 0});
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

/// Empty where the variable is not set.
std::string address_by_interface(const char* name, const std::vector<Interface>& interfaces) {
  const std::string wanted = variable(name);
  if (wanted.empty()) return "";
  std::istringstream names(wanted);
  for (std::string one; std::getline(names, one, ',');) {
    const auto found = std::find_if(interfaces.begin(), interfaces.end(), [&](const auto& i) { return i.name == one; });
    if (found != interfaces.end()) return found->address;
  }
  throw ConfigError(fmt::format("{} is '{}': this host has no such interface with an address that others can reach; it "
                                "has {}",
                                name, wanted, list_of(interfaces)),
                    name);
}

}  // namespace

OwnAddress own_address_for(const Endpoint& meeting_place) {
  if (const std::string ports = variable("TESSERA_PORTS"); !ports.empty()) {
    throw ConfigError(
        fmt::format("TESSERA_PORTS is '{}': ranks cannot be told their ports, the system chooses those of "
                    "gloo inside libtorch. Unset it, and limit what the system chooses from on each "
                    "host: sysctl net.ipv4.ip_local_port_range=\"30000 30999\"",
                    ports),
        "TESSERA_PORTS");
  }
  const auto interfaces = interfaces_of_host();
  if (const std::string given = variable("TESSERA_ADDRESS"); !given.empty()) {
    const std::string address = resolve(given);
    if (is_own(address)) return {address, address};
    throw ConfigError(
        fmt::format("TESSERA_ADDRESS is '{}': that is no address of this host, which has {}. Ranks do not "
                    "reach each other through translated addresses (NAT).",
                    given, list_of(interfaces)),
        "TESSERA_ADDRESS");
  }
  for (const char* name : {"TESSERA_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const std::string address = address_by_interface(name, interfaces);
    if (!address.empty()) return {address, address};
  }
  return {listening_address(meeting_place), address_towards(meeting_place)};
}

}  // namespace tessera::comm
