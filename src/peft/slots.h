#pragma once
// The places in a model where adapters sit.
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"

namespace tessera::peft {

/// A module that takes an adapter: one of the two pointers is set.
struct Slot {
  std::string name;  // fully qualified
  nn::Linear* linear = nullptr;
  nn::Embedding* embedding = nullptr;
  /// Of a layer that runs at several places (peft/replication): which of them. `name` is then that of the place, `path`
  /// where the layer is in the module tree.
  int place = -1;
  std::string path = {};

  const nn::Adapter* adapter() const;
  void detach() const;
  void attach(std::shared_ptr<nn::LinearAdapter> adapter) const;
  /// The full name of its weight, and of a parameter of its adapter by its name below the slot.
  std::string weight_name() const { return (place < 0 ? name : path) + ".weight"; }
  std::string full_name(const std::string& below) const;
  at::Tensor weight() const { return linear ? linear->weight : embedding->weight; }
  at::Tensor bias() const { return linear ? linear->bias : at::Tensor(); }
  /// The weight lies as [in, out], not as [out, in].
  bool transposed() const { return embedding || linear->weight_layout() == nn::WeightLayout::kInOut; }
  /// The adapter's parameters, by names below this slot.
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  /// One of them; undefined: there is none of this name.
  at::Tensor parameter(const std::string& name_below) const;
};

/// Every Linear and Embedding of the model that is not part of an adapter, in registration order.
std::vector<Slot> slots(const nn::HookedModule& model);

/// Those that hold an adapter.
std::vector<Slot> adapted_slots(const nn::HookedModule& model);

/// The same with a slot for each place of a layer that runs at several.
std::vector<Slot> placed_slots(const nn::HookedModule& model);
std::vector<Slot> adapted_places(const nn::HookedModule& model);

}  // namespace tessera::peft
