#pragma once
#include <csignal>
#include <map>

namespace tessera::train {

/// While it lives, the run is asked to stop by SIGINT, SIGTERM and SIGHUP, which set a flag instead of ending the
/// process. However many of them come, the run may finish its step and save; only a SIGINT that is a request of its own
/// (later than a moment after the last signal, and not passed on by the rank's launcher) ends the process at once. A
/// SIGHUP that is ignored (nohup) stays so. SIGPIPE does nothing: who reads the output may go with the terminal.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  static bool requested();
  /// The first signal that came; 0: none.
  static int signal();

 private:
  std::map<int, struct sigaction> before_;
};

/// Where exit_code is that of a run that a signal to this process has stopped, ends the process by that signal, so that
/// whoever waits for it knows it from the ranks that stopped with it.
void end_by_signal(int exit_code);

}  // namespace tessera::train
