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

  bool adapted() const { return linear ? linear->adapter() != nullptr : embedding->adapter() != nullptr; }
  double scaling() const { return linear ? linear->adapter()->scaling : embedding->adapter()->scaling; }
  /// a: [rank, in], b: [out, rank], with PEFT's meaning of in and out.
  at::Tensor a() const { return linear ? linear->adapter()->a->weight : embedding->adapter()->a; }
  at::Tensor b() const { return linear ? linear->adapter()->b->weight : embedding->adapter()->b; }
  at::Tensor magnitude() const { return linear ? linear->adapter()->magnitude : embedding->adapter()->magnitude; }
  at::Tensor weight() const { return linear ? linear->weight : embedding->weight; }
  at::Tensor bias() const { return linear ? linear->bias : at::Tensor(); }
  /// The weight lies as [in, out], not as [out, in].
  bool transposed() const { return embedding || linear->weight_layout() == nn::WeightLayout::kInOut; }
  std::string name_of_a() const { return name + (linear ? ".lora_A.default.weight" : ".lora_embedding_A.default"); }
  std::string name_of_b() const { return name + (linear ? ".lora_B.default.weight" : ".lora_embedding_B.default"); }
  std::string name_of_magnitude() const { return name + ".lora_magnitude_vector.default.weight"; }
};

/// Every Linear and Embedding of the model that is not part of an adapter, in registration order.
std::vector<Slot> slots(const nn::HookedModule& model);

/// Those that hold an adapter.
std::vector<Slot> adapted_slots(const nn::HookedModule& model);

/// True for a parameter of an adapter's own.
bool is_adapter_parameter(const std::string& name);

}  // namespace tessera::peft
