#include "verify/replay.h"

#include "checkpoint/pretrained.h"
#include "peft/adapter_files.h"
#include "train/lora_fa_projections.h"
#include "train/method_optimizer.h"
#include "train/training_arguments.h"

namespace tessera::verify {
std::unique_ptr<optim::Optimizer> make_optimizer(const tasks::Assembled& a, const std::string& name,
                                                 const optim::OptimizerOptions& options, DecayGroups groups,
                                                 const train::LearningRates& rates) {
  auto slices = fsdp::parameter_slices(*a.sharded);
  const train::DecayByModule decays(*a.model);
  for (auto& slice : slices) {
    const bool decayed = rates.loraplus_lr_ratio > 0 ? decays.with_loraplus(slice.name, slice)
                                                     : groups == DecayGroups::kAll || decays(slice.name);
    if (!decayed) slice.weight_decay = 0.0;
  }
  train::apply_learning_rates(rates, options.lr, slices);
  auto optimizer =
      optim::make_optimizer(name, options, a.sharded->parameters(), std::move(slices), a.sharded->shard_group());
  optimizer->keep_state_in(a.sharded->offload_store());
  train::set_projections(*optimizer, *a.model, *a.sharded);
  return train::with_method(std::move(optimizer), *a.sharded, a.adapters ? a.adapters->method.get() : nullptr);
}

std::map<std::string, at::Tensor> final_tensors(const tasks::Assembled& a) {
  std::multimap<std::string, std::string> names;
  if (a.adapters) {
    for (auto& entry : peft::adapter_entries(*a.model, *a.adapters->method))
      names.emplace(entry.parameter, entry.file_name);
  } else {
    for (const auto& view : a.sharded->shards()) names.emplace(view.name, view.name);
  }
  std::map<std::string, at::Tensor> tensors;
  a.sharded->visit_full(
      [&](const std::string& name, const at::Tensor& t) {
        const auto copy = t.clone();
        for (auto [at, end] = names.equal_range(name); at != end; ++at) tensors[at->second] = copy;
      },
      [&](const std::string& name) { return names.contains(name); });
  if (a.adapters) tensors.merge(checkpoint::made_for_file(*a.sharded, a.adapted()));
  return tensors;
}

double loss_labels(const at::Tensor& labels, models::ModelKind kind, const models::InputAdapter* adapter) {
  const bool in_front = adapter && adapter->virtual_tokens() > 0;  // then a row has a prediction for its first label
  const auto counted = kind == models::ModelKind::kCausal && !in_front ? labels.slice(1, 1) : labels;
  return counted.ne(-100).sum().item<double>();
}

}  // namespace tessera::verify
