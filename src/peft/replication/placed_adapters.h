#pragma once
// The adapters of a layer that runs at several places of a decoder's stack (layer_replication): one for each place,
// over the same frozen weight.
#include <map>
#include <memory>
#include <string>

#include "tessera/nn/linear.h"

namespace tessera::peft {

/// Below such a layer: "places.4.lora_A.default.weight".
inline const std::string kPlacesOfLayer = "places";

class PlacedLinear final : public nn::LinearAdapter {
 public:
  PlacedLinear();
  void add(int place, std::shared_ptr<nn::LinearAdapter> adapter);
  /// Null: at this place the layer has none.
  const nn::LinearAdapter* at(int place) const;
  std::string class_name() const override;
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override;

 private:
  nn::AdapterModule& place_;
  std::map<int, std::shared_ptr<nn::LinearAdapter>> adapters_;
};

}  // namespace tessera::peft
