#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::worker {

/// `tessera completion bash|zsh|fish`: prints the shell's script.
int completion(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

/// `tessera man DIR`: writes a manual page for the program and one for each command.
int man(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::worker
