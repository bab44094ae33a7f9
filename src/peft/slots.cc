#include "peft/slots.h"

#include <algorithm>

namespace tessera::peft {

bool is_adapter_parameter(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

std::vector<Slot> slots(const nn::HookedModule& model) {
  std::vector<Slot> out;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (is_adapter_parameter(item.key())) continue;
    Slot slot{item.key(), dynamic_cast<nn::Linear*>(item.value().get()),
              dynamic_cast<nn::Embedding*>(item.value().get())};
    if (slot.linear || slot.embedding) out.push_back(std::move(slot));
  }
  return out;
}

std::vector<Slot> adapted_slots(const nn::HookedModule& model) {
  auto all = slots(model);
  std::erase_if(all, [](const Slot& s) { return !s.adapted(); });
  return all;
}

}  // namespace tessera::peft
