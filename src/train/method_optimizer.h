#pragma once
// What some PEFT methods do to their parameters at every step of the optimizer.
#include <memory>

#include "peft/method.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::train {

/// `inner`, and around it what the method (null: none) does beside its steps: AdaLoRA allocates ranks, COFT projects
/// blocks. `model` and the method outlive it. ConfigError for optimizers that the method does not go with.
std::unique_ptr<optim::Optimizer> with_method(std::unique_ptr<optim::Optimizer> inner,
                                              fsdp::FullyShardedDataParallel& model, peft::PeftMethod* method);

}  // namespace tessera::train
