#pragma once
// What LoRA-FA (optim/lora_fa.h) needs to know of a model.
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/block.h"

namespace tessera::train {

/// The name of the optimizer (--optim).
inline constexpr const char* kLoraFa = "lorafa";

/// Before sharding: lora_A trains no longer. ConfigError where there is none, or where DoRA is.
void freeze_lora_a(nn::HookedModule& modules);

/// Collective. Gives a LoraFa the projections of all lora_B; other optimizers are left alone.
void set_projections(optim::Optimizer& optimizer, nn::HookedModule& modules, fsdp::FullyShardedDataParallel& model);

}  // namespace tessera::train
