// Adapters of a sharded model, merged into its weights or measured against them, one unit at a time.
#include <ATen/core/grad_mode.h>

#include <map>

#include "checkpoint/pretrained.h"
#include "peft/merge.h"

namespace tessera::checkpoint {
namespace {

/// Slots by the name of their weight, and the whole values of every adapter.
struct Adapters {
  std::map<std::string, peft::Slot> slots;
  std::map<std::string, at::Tensor> values;

  peft::AdapterValues of(const peft::Slot& slot) const {
    const auto magnitude = values.find(slot.name_of_magnitude());
    return {values.at(slot.name_of_a()), values.at(slot.name_of_b()),
            magnitude == values.end() ? at::Tensor() : magnitude->second};
  }
};

Adapters gather_adapters(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module) {
  Adapters out;
  for (auto& slot : peft::adapted_slots(module)) {
    const auto weight = slot.name + ".weight";
    out.slots.emplace(weight, std::move(slot));
  }
  model.visit_full([&](const std::string& name, const at::Tensor& t) { out.values[name] = t.clone(); },
                   peft::is_adapter_parameter);
  return out;
}

}  // namespace

void visit_merged(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module,
                  const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit) {
  const Adapters adapters = gather_adapters(model, module);
  model.visit_full(
      [&](const std::string& name, const at::Tensor& tensor) {
        const auto slot = adapters.slots.find(name);
        visit(name, slot == adapters.slots.end()
                        ? tensor
                        : peft::merged_weight(slot->second, tensor, adapters.of(slot->second)));
      },
      [](const std::string& name) { return !peft::is_adapter_parameter(name); });
}

void initialise_magnitudes(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module) {
  const at::NoGradGuard no_grad;
  const Adapters adapters = gather_adapters(model, module);
  std::map<std::string, at::Tensor> norms;  // by the magnitude's name
  model.visit_full(
      [&](const std::string& name, const at::Tensor& weight) {
        const auto& slot = adapters.slots.at(name);
        norms[slot.name_of_magnitude()] = peft::merged_norms(slot, weight, adapters.of(slot));
      },
      [&](const std::string& name) { return adapters.slots.contains(name); });
  for (const auto& view : model.shards()) {
    const auto it = norms.find(view.name);
    if (it != norms.end() && view.local.numel() > 0)
      view.local.copy_(it->second.narrow(0, view.offset, view.local.numel()));
  }
  model.mark_updated();
}

}  // namespace tessera::checkpoint
