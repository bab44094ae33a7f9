#include "tasks/replay.h"

#include <regex>

namespace tessera::tasks {
namespace {

/// Trainer.get_decay_parameter_names: by the parameter's name, and no member of a LayerNorm whatever its name is.
bool is_decayed(const std::string& name) {
  static const std::regex kNames(R"(bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|(?:^|\.)ln_[a-z0-9]+\.)",
                                 std::regex::icase);
  return !std::regex_search(name, kNames);
}

}  // namespace

optim::AdamW make_adamw(fsdp::FullyShardedDataParallel& model, optim::AdamWOptions options, DecayGroups groups) {
  auto parameters = model.parameters();
  if (groups == DecayGroups::kTrainer) {
    options.no_decay.resize(parameters.size());
    for (const auto& view : model.shards()) {
      if (view.parameter < 0 || is_decayed(view.name)) continue;
      options.no_decay[static_cast<std::size_t>(view.parameter)].emplace_back(
          view.parameter_offset, view.parameter_offset + view.local.numel());
    }
  }
  return optim::AdamW(std::move(parameters), std::move(options));
}

double loss_labels(const at::Tensor& labels, models::ModelKind kind) {
  const auto counted = kind == models::ModelKind::kCausal ? labels.slice(1, 1) : labels;
  return counted.ne(-100).sum().item<double>();
}

}  // namespace tessera::tasks
