#pragma once
// The processes that `tessera launch` has started, found from outside.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace tessera::test {

inline pid_t parent_of(pid_t pid) {
  std::stringstream stat;
  stat << std::ifstream("/proc/" + std::to_string(pid) + "/stat").rdbuf();
  const std::string text = stat.str();
  const std::size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? -1 : std::atoi(text.c_str() + name_end + 4);
}

/// Its children, with the names that `ps -o comm` shows.
inline std::map<pid_t, std::string> children_of(pid_t parent) {
  std::map<pid_t, std::string> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && parent_of(pid) == parent) std::getline(std::ifstream(entry.path() / "comm"), children[pid]);
  }
  return children;
}

/// The launcher's children that have become ranks, by number: worker/main.cc names them. (Its keeper is a child, too.)
inline std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  for (const auto& [pid, name] : children_of(launcher))
    if (name.starts_with("tessera:")) ranks[std::stoi(name.substr(8))] = pid;
  return ranks;
}

}  // namespace tessera::test
