#pragma once
// `tessera chat`: a conversation with a model and its adapter on a terminal, or over a pipe.
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

/// Reads a message a line from standard input and prints each answer as its tokens come, until the input ends, /exit,
/// or Ctrl-C at a prompt (then the exit code is 130); Ctrl-C during an answer ends the answer. One process.
int chat(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
