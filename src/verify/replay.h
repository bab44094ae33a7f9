#pragma once
// What replayed training runs share: Trainer's optimizer, and how the labels of a loss are counted.
#include <map>
#include <memory>
#include <string>

#include "tasks/assemble.h"
#include "tessera/optim/factory.h"
#include "train/learning_rates.h"

namespace tessera::verify {

/// Which parameters the optimizer decays: all, or Trainer's choice (no biases, no norms).
enum class DecayGroups { kAll, kTrainer };

/// name: as in optim::make_optimizer().
std::unique_ptr<optim::Optimizer> make_optimizer(const tasks::Assembled& a, const std::string& name,
                                                 const optim::OptimizerOptions& options, DecayGroups groups,
                                                 const train::LearningRates& rates = {});

/// Labels that have a loss: a causal model does not predict the first of a row, unless virtual tokens stand before it.
double loss_labels(const at::Tensor& labels, models::ModelKind kind, const models::InputAdapter* adapter = nullptr);

/// What the reference's file of final values holds, by its names: the adapter, or every trained parameter.
std::map<std::string, at::Tensor> final_tensors(const tasks::Assembled& a);

}  // namespace tessera::verify
