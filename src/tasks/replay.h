#pragma once
// What replayed training runs share: Trainer's optimizer, and how the labels of a loss are counted.
#include "models/model.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::tasks {

/// Which parameters the optimizer decays: all, or Trainer's choice (no biases, no norms).
enum class DecayGroups { kAll, kTrainer };

optim::AdamW make_adamw(fsdp::FullyShardedDataParallel& model, optim::AdamWOptions options, DecayGroups groups);

/// Labels that have a loss: a causal model does not predict the first of a row.
double loss_labels(const at::Tensor& labels, models::ModelKind kind);

}  // namespace tessera::tasks
