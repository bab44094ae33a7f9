#include "peft/merge.h"

#include <ATen/core/grad_mode.h>

namespace tessera::peft {

Values adapter_values(const nn::HookedModule& model) {
  Values out;
  const auto parameters = model.named_parameters();
  for (const auto& name : nn::adapter_parameters(model)) out[name] = parameters[name].detach();
  return out;
}

Merger::Merger(const nn::HookedModule& model, const PeftMethod& method, Values adapters, at::Device device)
    : method_(method), device_(device) {
  method.check_can_merge(model);
  for (auto& [name, value] : adapters) value = value.to(device);
  Values shared;  // below the model itself
  for (const auto& child : model.named_children()) {
    if (!dynamic_cast<const nn::AdapterModule*>(child.value().get())) continue;
    const auto prefix = child.key() + ".";
    for (auto it = adapters.lower_bound(prefix); it != adapters.end() && it->first.starts_with(prefix); ++it)
      shared.insert(*it);
  }
  for (auto& slot : adapted_slots(model)) {
    const auto prefix = slot.name + ".";
    Adapted adapted{std::move(slot), shared};
    for (auto it = adapters.lower_bound(prefix); it != adapters.end() && it->first.starts_with(prefix); ++it)
      adapted.values[it->first.substr(prefix.size())] = it->second;
    slots_.emplace(adapted.slot.name, std::move(adapted));
  }
}

at::Tensor Merger::merged(const std::string& parameter, const at::Tensor& value) const {
  const auto dot = parameter.rfind('.');
  const auto it = dot == std::string::npos ? slots_.end() : slots_.find(parameter.substr(0, dot));
  if (it == slots_.end()) return value;
  const at::NoGradGuard no_grad;
  return method_.merged(it->second.slot, parameter.substr(dot + 1), value.to(device_), it->second.values);
}

void merge_adapters(nn::HookedModule& model, const PeftMethod& method) {
  const Merger merger(model, method, adapter_values(model), at::kCPU);
  const auto adapters = nn::adapter_parameters(model);
  for (const auto& item : model.named_parameters()) {
    if (adapters.contains(item.key())) continue;
    const auto value = merger.merged(item.key(), item.value().detach());
    if (!value.is_same(item.value())) item.value().detach().copy_(value);
  }
  for (const auto& slot : adapted_slots(model)) slot.detach();
  for (const auto& child : model.named_children())
    if (dynamic_cast<const nn::AdapterModule*>(child.value().get())) model.unregister_module(child.key());
}

}  // namespace tessera::peft
