#pragma once
// Machines that this one plays: network namespaces, each with one interface, "wire", on a switch. They need root and
// iproute2.
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tessera::test {

class Namespaces {
 public:
  explicit Namespaces(int machines = 2) : machines_(machines) {
    std::string script = "ip netns add @s && ip -n @s link add bridge type bridge && ip -n @s link set bridge up";
    for (int m = 0; m < machines; ++m) {
      const std::string n = std::to_string(m), space = name(m);
      script += " && ip netns add " + space + " && ip -n " + space + " link add wire type veth peer name port" + n +
                " netns @s && ip -n @s link set port" + n + " master bridge up && ip -n " + space + " addr add " +
                address(m) + "/24 dev wire && ip -n " + space + " link set wire up && ip -n " + space +
                " link set lo up";
    }
    made_ = shell(script + " && ip netns exec " + name(0) + " true");
  }
  ~Namespaces() {
    std::string script = "ip netns del @s";
    for (int m = 0; m < machines_; ++m) script += "; ip netns del " + name(m);
    shell(script);
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  bool made() const { return made_; }
  static constexpr const char* kSkipped = "network namespaces cannot be made here (needs root and iproute2)";
  static std::string name(int machine) { return prefix() + std::to_string(machine); }
  static std::string address(int machine) { return "10.77.0." + std::to_string(machine + 1); }
  void pull_the_cable(int machine = 0) const { shell("ip -n " + name(machine) + " link set wire down"); }
  void plug_the_cable(int machine = 0) const { shell("ip -n " + name(machine) + " link set wire up"); }
  /// @s stands for the switch's namespace.
  static bool shell(std::string script) {
    for (std::size_t at = 0; (at = script.find("@s", at)) != std::string::npos;) script.replace(at, 2, prefix() + "s");
    return std::system(("PATH=$PATH:/usr/sbin:/sbin; { " + script + "; } >/dev/null 2>&1").c_str()) == 0;
  }

 private:
  static std::string prefix() { return "tessera_" + std::to_string(::getpid()) + "_"; }
  int machines_;
  bool made_ = false;
};

}  // namespace tessera::test
