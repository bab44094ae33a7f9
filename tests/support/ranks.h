#pragma once
// The processes that `tessera launch` has started, found from outside.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace tessera::test {

/// The environment with which a process's program was started; empty for one that has ended.
inline std::map<std::string, std::string> environment_of(pid_t pid) {
  std::map<std::string, std::string> variables;
  std::ifstream in("/proc/" + std::to_string(pid) + "/environ");
  for (std::string entry; std::getline(in, entry, '\0');) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return variables;
}

inline pid_t parent_of(pid_t pid) {
  std::stringstream stat;
  stat << std::ifstream("/proc/" + std::to_string(pid) + "/stat").rdbuf();
  const std::string text = stat.str();
  const std::size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? -1 : std::atoi(text.c_str() + name_end + 4);
}

/// The launcher's children that have become ranks, by number. (Its keeper is a child, too.)
inline std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || parent_of(pid) != launcher) continue;
    auto variables = environment_of(pid);
    if (variables["TORCHELASTIC_RUN_ID"] != "tessera-" + std::to_string(launcher)) continue;
    ranks[std::stoi(variables["RANK"])] = pid;
  }
  return ranks;
}

}  // namespace tessera::test
