#pragma once
// The places in a model where adapters sit.
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

  const nn::Adapter* adapter() const;
  void detach() const;
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

}  // namespace tessera::peft
