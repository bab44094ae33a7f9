#pragma once
// EVA (Paischer et al. 2024), PEFT's initialize_lora_eva_weights: LoRA begins with the principal components of what its
// layers see of the training rows, and layers whose components explain more get more of the ranks.
#include <functional>
#include <memory>
#include <string>

#include "peft/methods/lora.h"
#include "tasks/assemble.h"
#include "train/trainer.h"

namespace tessera::tasks {

/// A new adapter that asks for it; null: `method` is none.
std::shared_ptr<const peft::Lora> asks_for_eva(const std::shared_ptr<const peft::PeftMethod>& method);

struct EvaStart {
  std::shared_ptr<const peft::PeftMethod> method;  // with the ranks, as any other LoRA
  peft::Values values;                             // of A, by the parameters' names
  std::string line;                                // for the user
};

/// Collective; every rank computes its rows, the layers' inputs of all ranks are put together as those of one batch.
/// base: the model that `options` describe, without an adapter; its layers are observed from now on. The components are
/// those of batches 0, 1, ... of the first epoch, again from the first one where they have not converged at its end.
/// ConfigError where batches have too few tokens, and after kMostEvaBatches of them.
EvaStart find_eva_start(const Assembled& base, const AssembleOptions& options, train::Trainable& rows,
                        comm::Communicator& group);
inline constexpr std::int64_t kMostEvaBatches = 500;

}  // namespace tessera::tasks
