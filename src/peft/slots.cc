#include "peft/slots.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/causal_lm.h"
#include "peft/replication/placed_adapters.h"

namespace tessera::peft {

const nn::Adapter* Slot::adapter() const {
  if (place >= 0) {
    const auto* placed = dynamic_cast<const PlacedLinear*>(linear->adapter());
    return placed ? placed->at(place) : nullptr;
  }
  return linear ? static_cast<const nn::Adapter*>(linear->adapter()) : embedding->adapter();
}

void Slot::detach() const {
  if (linear) linear->detach();
  if (embedding) embedding->detach();
}

void Slot::attach(std::shared_ptr<nn::LinearAdapter> adapter) const {
  if (place < 0) return linear->attach(std::move(adapter));
  if (!linear->adapter()) linear->attach(std::make_shared<PlacedLinear>());
  dynamic_cast<PlacedLinear&>(*linear->adapter()).add(place, std::move(adapter));
}

std::string Slot::full_name(const std::string& below) const {
  return place < 0 ? name + "." + below : path + "." + kPlacesOfLayer + "." + std::to_string(place) + "." + below;
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

std::vector<Slot> placed_slots(const nn::HookedModule& model) {
  const auto all = slots(model);
  const auto* decoder = dynamic_cast<const models::CausalLm*>(&model);
  if (!decoder || !decoder->is_reordered()) return all;
  const auto stack = decoder->layers_name() + ".";
  std::vector<Slot> out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out),
               [&](const Slot& s) { return !s.name.starts_with(stack); });
  const auto& order = decoder->layer_order();
  for (std::size_t place = 0; place < order.size(); ++place) {
    const auto layer = stack + std::to_string(order[place]) + ".";
    for (auto slot : all) {
      if (!slot.name.starts_with(layer)) continue;
      slot.path = std::exchange(slot.name, stack + std::to_string(place) + "." + slot.name.substr(layer.size()));
      slot.place = static_cast<int>(place);
      out.push_back(std::move(slot));
    }
  }
  return out;
}

std::vector<Slot> adapted_places(const nn::HookedModule& model) {
  auto all = placed_slots(model);
  std::erase_if(all, [](const Slot& s) { return !s.adapter(); });
  return all;
}

}  // namespace tessera::peft
