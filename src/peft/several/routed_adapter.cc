#include "peft/several/routed_adapter.h"

#include "models/batch_part.h"
#include "nn/layers/container.h"
#include "tessera/base/error.h"

namespace tessera::peft {

int AdapterChoice::now() const {
  if (of_parts.empty()) return number;
  const int part = models::BatchPart::now();
  if (part < 0) {
    throw Error(
        "a layer of adapters that train side by side runs outside of its decoder layer, so that it is not known whose "
        "rows it has; recompute whole decoder layers (TRANSFORMER_BASED_WRAP with activation checkpointing)");
  }
  return of_parts.at(static_cast<std::size_t>(part));
}

namespace {

/// The adapter's modules below a place of its own.
void register_below(nn::AdapterModule& place, const std::string& name, const nn::Adapter& adapter) {
  auto own = std::make_shared<nn::Container>("ModuleDict");
  for (const auto& [module_name, module] : adapter.modules()) own->register_module(module_name, module);
  place.register_module(name, own);
}

template <class Adapters>
auto* chosen(const Adapters& adapters, const AdapterChoice& choice) {
  const auto it = adapters.find(choice.now());
  return it == adapters.end() ? nullptr : it->second.get();
}

template <class Adapters>
std::string names_of(const Adapters& adapters) {
  std::string names;
  for (const auto& [number, adapter] : adapters) names += (names.empty() ? "" : ", ") + adapter->class_name();
  return "routed(" + names + ")";
}

}  // namespace

RoutedLinear::RoutedLinear(std::shared_ptr<const AdapterChoice> choice)
    : choice_(std::move(choice)), place_(add_module(kAdaptersOfLayer, "ModuleDict")) {}

void RoutedLinear::add(int number, const std::string& name, std::shared_ptr<nn::LinearAdapter> adapter) {
  register_below(place_, name, *adapter);
  adapters_[number] = std::move(adapter);
}

std::string RoutedLinear::class_name() const {
  return names_of(adapters_);
}

at::Tensor RoutedLinear::forward(const nn::Linear& layer, const at::Tensor& x) {
  auto* adapter = chosen(adapters_, *choice_);
  return adapter ? adapter->forward(layer, x) : layer.product(x);
}

RoutedEmbedding::RoutedEmbedding(std::shared_ptr<const AdapterChoice> choice)
    : choice_(std::move(choice)), place_(add_module(kAdaptersOfLayer, "ModuleDict")) {}

void RoutedEmbedding::add(int number, const std::string& name, std::shared_ptr<nn::EmbeddingAdapter> adapter) {
  register_below(place_, name, *adapter);
  adapters_[number] = std::move(adapter);
}

std::string RoutedEmbedding::class_name() const {
  return names_of(adapters_);
}

at::Tensor RoutedEmbedding::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  auto* adapter = chosen(adapters_, *choice_);
  return adapter ? adapter->forward(layer, ids) : layer.rows(ids);
}

at::Tensor RoutedEmbedding::head_weight(const nn::Embedding& layer) {
  auto* adapter = chosen(adapters_, *choice_);
  return adapter ? adapter->head_weight(layer) : at::Tensor();
}

}  // namespace tessera::peft
