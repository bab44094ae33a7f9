#pragma once
// Where a rule's result is not what it trains (schedule-free), evaluations and files get the result.
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::train {

/// Waits for a step that goes on. As long as it lives, the model is the average that the optimizer keeps; after it what
/// is trained, bit for bit.
class ShownAverage {
 public:
  ShownAverage(optim::Optimizer& optimizer, fsdp::FullyShardedDataParallel& model)
      : optimizer_(optimizer), model_(model) {
    model_.finish_step();
    if (!optimizer_.averages()) return;
    optimizer_.show_average();
    model_.mark_updated();
  }
  ~ShownAverage() {
    if (!optimizer_.averages()) return;
    optimizer_.show_trained();
    model_.mark_updated();
  }
  ShownAverage(const ShownAverage&) = delete;
  ShownAverage& operator=(const ShownAverage&) = delete;

 private:
  optim::Optimizer& optimizer_;
  fsdp::FullyShardedDataParallel& model_;
};

}  // namespace tessera::train
