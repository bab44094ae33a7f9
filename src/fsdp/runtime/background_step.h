#pragma once
// An optimizer's step in a thread of its own, while the next forward computes: for slices that lie in host memory and
// units that compute on a device with copies of them. A unit waits for its own part only.
//
// The gradients' norm needs all gradients, so a step cannot begin before backward has ended. But the first unit's
// forward needs the first unit alone, and the processor's work on the others hides behind it.
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fsdp/runtime/unit.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"

namespace tessera::fsdp {

class BackgroundStep {
 public:
  /// fences: of the ranks that share memory, for this object alone; null for a rank that shares with nobody.
  BackgroundStep(const std::vector<std::shared_ptr<Unit>>& units, std::shared_ptr<comm::Communicator> fences);
  ~BackgroundStep();
  BackgroundStep(const BackgroundStep&) = delete;
  BackgroundStep& operator=(const BackgroundStep&) = delete;

  /// All ranks that share memory start it, with optimizers that do not communicate and whose parameters are the units'
  /// trainable slices in their order. Nobody reads whole parameters now. Until finish() nothing else touches these,
  /// their gradients, or the optimizer.
  void start(optim::Optimizer& optimizer);
  /// Between start() and finish().
  bool running() const { return optimizer_ != nullptr; }

  /// All ranks have updated the unit and show it.
  bool has_updated(const Unit& unit);
  /// Returns when they have. Throws what the step has thrown.
  void wait_for(const Unit& unit);
  /// Waits for all units, and takes the gradients away. Throws what the step has thrown.
  void finish();

 private:
  void work();  // the thread
  void step();
  void note_updated(std::size_t flat);
  bool is_done(const Unit& unit) const;

  const std::vector<std::shared_ptr<Unit>>& units_;
  std::shared_ptr<comm::Communicator> fences_;
  std::vector<std::size_t> unit_of_;  // by flat parameter
  std::vector<std::size_t> flats_;    // by unit: how many it has
  optim::Optimizer* optimizer_ = nullptr;

  // Of the thread, while it steps.
  std::vector<std::size_t> left_;  // by unit: flat parameters that are not updated
  std::vector<bool> updated_;      // by flat parameter

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool asked_ = false, stops_ = false;
  bool ended_ = true;         // the step is over
  std::exception_ptr error_;  // that it has thrown
  std::size_t shown_ = 0;     // the units before this one are updated and shown
  std::thread thread_;        // last: it uses all else
};

}  // namespace tessera::fsdp
