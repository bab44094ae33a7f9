#pragma once

namespace tessera::train {

/// While it lives, SIGINT and SIGTERM set a flag instead of ending the process; a second signal ends it at once.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  static bool requested();
  /// The signal that came; 0: none.
  static int signal();
};

}  // namespace tessera::train
