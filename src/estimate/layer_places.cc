#include "estimate/layer_places.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::estimate {

std::vector<ModelTensor> at_places(const std::vector<ModelTensor>& tensors, const std::string& layer_replication) {
  const auto ranges = nlohmann::json::parse(layer_replication.empty() ? "null" : layer_replication, nullptr, false);
  if (ranges.is_null()) return tensors;
  const std::string stack = "model.layers.";
  std::vector<ModelTensor> out;
  std::map<std::int64_t, std::vector<ModelTensor>> layers;
  for (const auto& t : tensors) {
    if (t.name.starts_with(stack))
      layers[std::stoll(t.name.substr(stack.size()))].push_back(t);
    else
      out.push_back(t);
  }
  std::int64_t place = 0;
  const auto add = [&](std::int64_t layer) {
    for (auto t : layers.at(layer)) {
      t.name = stack + std::to_string(place) + t.name.substr(t.name.find('.', stack.size()));
      out.push_back(std::move(t));
    }
    ++place;
  };
  try {
    for (const auto& range : ranges)
      for (auto layer = range.at(0).get<std::int64_t>(); layer < range.at(1).get<std::int64_t>(); ++layer) add(layer);
  } catch (const std::exception&) {
    throw ConfigError("layer_replication is a list of ranges of the model's layers, [[0, 4], [2, 5]]; found '" +
                          layer_replication + "' for " + std::to_string(layers.size()) + " layers in 'model.layers'",
                      "layer_replication");
  }
  return out;
}

}  // namespace tessera::estimate
