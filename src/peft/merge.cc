#include "peft/merge.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "peft/lora.h"

namespace tessera::peft {
namespace {

/// W + scaling B A in float32, [out, in]; a view of another layout where the weight lies transposed.
at::Tensor summed(const Slot& slot, const at::Tensor& weight, const AdapterValues& values) {
  const auto w = weight.detach().to(at::kFloat), a = values.a.detach().to(at::kFloat),
             b = values.b.detach().to(at::kFloat);
  if (slot.transposed()) return at::addmm(w, a.t(), b.t(), 1, slot.scaling()).t();
  return at::addmm(w, b, a, 1, slot.scaling());
}

at::Tensor row_norms(const at::Tensor& sum) {
  return at::linalg_vector_norm(sum, 2, at::IntArrayRef{1});
}

AdapterValues values_of(const Slot& slot) {
  return {slot.a().detach(), slot.b().detach(), slot.magnitude().defined() ? slot.magnitude().detach() : at::Tensor()};
}

}  // namespace

at::Tensor merged_norms(const Slot& slot, const at::Tensor& weight, const AdapterValues& values) {
  const at::NoGradGuard no_grad;
  return row_norms(summed(slot, weight, values));
}

at::Tensor merged_weight(const Slot& slot, const at::Tensor& weight, const AdapterValues& values) {
  const at::NoGradGuard no_grad;
  auto sum = summed(slot, weight, values);
  if (values.magnitude.defined()) sum = sum * (values.magnitude.to(at::kFloat) / row_norms(sum)).unsqueeze(1);
  return (slot.transposed() ? sum.t() : sum).to(weight.scalar_type()).contiguous();
}

void merge_lora(nn::HookedModule& model) {
  for (const auto& slot : adapted_slots(model)) {
    slot.weight().detach().copy_(merged_weight(slot, slot.weight(), values_of(slot)));
    if (slot.linear) slot.linear->remove_adapter();
    if (slot.embedding) slot.embedding->remove_adapter();
  }
}

void initialise_magnitudes(nn::HookedModule& model) {
  for (const auto& slot : adapted_slots(model)) {
    if (slot.magnitude().defined()) slot.magnitude().detach().copy_(merged_norms(slot, slot.weight(), values_of(slot)));
  }
}

}  // namespace tessera::peft
