#pragma once
// --profile FILE: what some steps spend their time on, as a Chrome trace (chrome://tracing, ui.perfetto.dev): one
// process for each rank, with libtorch's operators, the runtime's spans (tensor/span.h) and, on a line of their own,
// the backward of each unit.
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/communicator.h"

namespace tessera::train {

class Profile {
 public:
  /// Of steps 2 to 4 after `done` (the first one warms up), or of the only one if there are no more. A process records
  /// one profile at a time. ConfigError if the file's folder is not there.
  Profile(std::string path, comm::Communicator& group, std::int64_t done, std::int64_t total_steps);
  ~Profile();

  /// Before the step after `done` ones.
  void before_step(std::int64_t done);
  /// Collective. After the last of those steps rank 0 writes the file.
  void after_step(std::int64_t done);
  /// Collective: the run ends, perhaps earlier. Returns what to tell the user.
  std::string finish();

 private:
  class Recorder;
  void write();

  std::string path_;
  comm::Communicator& group_;
  std::int64_t first_, last_;  // steps done before and after
  std::int64_t recorded_ = 0;
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace tessera::train
