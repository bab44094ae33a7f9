#include "peft/replication/placed_adapters.h"

#include "models/layer_place.h"
#include "nn/layers/container.h"
#include "tessera/base/error.h"

namespace tessera::peft {

PlacedLinear::PlacedLinear() : place_(add_module(kPlacesOfLayer, "ModuleDict")) {}

void PlacedLinear::add(int place, std::shared_ptr<nn::LinearAdapter> adapter) {
  auto own = std::make_shared<nn::Container>("ModuleDict");
  for (const auto& [name, module] : adapter->modules()) own->register_module(name, module);
  place_.register_module(std::to_string(place), own);
  adapters_[place] = std::move(adapter);
}

const nn::LinearAdapter* PlacedLinear::at(int place) const {
  const auto found = adapters_.find(place);
  return found == adapters_.end() ? nullptr : found->second.get();
}

std::string PlacedLinear::class_name() const {
  return "placed(" + (adapters_.empty() ? std::string() : adapters_.begin()->second->class_name()) + ")";
}

at::Tensor PlacedLinear::forward(const nn::Linear& layer, const at::Tensor& x) {
  const int place = models::LayerPlace::now();
  if (place < 0) {
    throw Error(
        "a layer of an adapter with layer_replication runs outside of its decoder layer, so that its place is not "
        "known; "
        "recompute whole decoder layers (TRANSFORMER_BASED_WRAP with activation checkpointing)");
  }
  const auto found = adapters_.find(place);
  return found == adapters_.end() ? layer.product(x) : found->second->forward(layer, x);
}

}  // namespace tessera::peft
