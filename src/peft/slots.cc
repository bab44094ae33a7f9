#include "peft/slots.h"

#include <algorithm>

namespace tessera::peft {

const nn::Adapter* Slot::adapter() const {
  return linear ? static_cast<const nn::Adapter*>(linear->adapter()) : embedding->adapter();
}

void Slot::detach() const {
  if (linear) linear->detach();
  if (embedding) embedding->detach();
}

std::vector<std::pair<std::string, at::Tensor>> Slot::parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  if (!adapter()) return out;
  for (const auto& [module_name, module] : adapter()->modules())
    for (const auto& item : module->named_parameters()) out.emplace_back(module_name + "." + item.key(), item.value());
  return out;
}

at::Tensor Slot::parameter(const std::string& name_below) const {
  for (const auto& [known, tensor] : parameters())
    if (known == name_below) return tensor;
  return {};
}

std::vector<Slot> slots(const nn::HookedModule& model) {
  std::vector<Slot> out;
  std::string adapter;  // the adapter's module that was met last: what is below it comes next
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<nn::AdapterModule*>(item.value().get())) adapter = item.key() + ".";
    if (!adapter.empty() && item.key().starts_with(adapter)) continue;
    Slot slot{item.key(), dynamic_cast<nn::Linear*>(item.value().get()),
              dynamic_cast<nn::Embedding*>(item.value().get())};
    if (slot.linear || slot.embedding) out.push_back(std::move(slot));
  }
  return out;
}

std::vector<Slot> adapted_slots(const nn::HookedModule& model) {
  auto all = slots(model);
  std::erase_if(all, [](const Slot& s) { return !s.adapter(); });
  return all;
}

}  // namespace tessera::peft
