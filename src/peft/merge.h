#pragma once
// Folding adapters into the weights they adapt.
#include "peft/slots.h"

namespace tessera::peft {

/// The factors of an adapter, whole: what a slot holds, or copies of it.
struct AdapterValues {
  at::Tensor a, b, magnitude;  // magnitude undefined without DoRA
};

/// |W + scaling B A| of each output, float32 [out]: DoRA's norms. weight: as the slot's lies.
at::Tensor merged_norms(const Slot& slot, const at::Tensor& weight, const AdapterValues& values);

/// W + scaling B A, with DoRA times magnitude / its norms; computed in float32, in the weight's dtype and layout.
at::Tensor merged_weight(const Slot& slot, const at::Tensor& weight, const AdapterValues& values);

/// Merges every adapter of an unsharded model and removes it.
void merge_lora(nn::HookedModule& model);

}  // namespace tessera::peft
