#include "peft/replication/replicated_layers.h"

#include <algorithm>
#include <vector>

#include "base/json_text.h"
#include "models/causal_lm.h"
#include "peft/replication/placed_adapters.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

const std::string kStack = "model.layers";

[[noreturn]] void refuse_replication(const std::string& why) {
  throw ConfigError("LoRA option 'layer_replication' " + why, "layer_replication");
}

}  // namespace

void check_layer_replication(const nlohmann::json& ranges) {
  if (ranges.is_null()) return;
  const auto is_range = [](const nlohmann::json& range) {
    return range.is_array() && range.size() == 2 && range[0].is_number_integer() && range[1].is_number_integer() &&
           range[0] >= 0 && range[0] < range[1];
  };
  if (ranges.is_array() && !ranges.empty() && std::all_of(ranges.begin(), ranges.end(), is_range)) return;
  refuse_replication("is a list of ranges of layers, [[0, 4], [2, 5]] for 0 1 2 3 2 3 4; found " + json_text(ranges));
}

void replicate_layers(models::Model& model, const nlohmann::json& ranges) {
  auto* decoder = dynamic_cast<models::CausalLm*>(&model);
  if (!decoder || decoder->layers_name() != kStack)
    refuse_replication(
        "is for decoders whose layers are 'model.layers' (Llama, Mistral, Qwen2 and others), as in PEFT");
  std::vector<std::size_t> order;
  for (const auto& range : ranges) {
    const auto end = range[1].get<std::size_t>();
    if (end > decoder->num_layers())
      refuse_replication("names the layers up to " + std::to_string(end) + ", but there are " +
                         std::to_string(decoder->num_layers()));
    for (auto layer = range[0].get<std::size_t>(); layer < end; ++layer) order.push_back(layer);
  }
  decoder->set_layer_order(std::move(order));
}

bool is_replicated(const std::string& parameter) {
  return parameter.starts_with(kStack + ".");
}

std::string name_at_place(const std::string& parameter) {
  const std::string infix = "." + kPlacesOfLayer + ".";
  const auto at = parameter.find(infix);
  const auto layer = kStack.size() + 1;  // its number begins there
  if (at == std::string::npos || !parameter.starts_with(kStack + ".")) return parameter;
  const auto place = at + infix.size(), below = parameter.find('.', place), inside = parameter.find('.', layer);
  return parameter.substr(0, layer) + parameter.substr(place, below - place) + parameter.substr(inside, at - inside) +
         parameter.substr(below);
}

}  // namespace tessera::peft
