#include "fsdp/params/precision.h"

#include <ATen/core/grad_mode.h>

#include "tensor/device.h"

namespace tessera::fsdp {

void cast_floating(const std::vector<at::Tensor*>& tensors, at::ScalarType dtype) {
  for (auto* t : tensors)
    if (t->defined() && t->is_floating_point() && t->scalar_type() != dtype) *t = t->to(dtype);
}

void move_to(at::Device device, const std::vector<at::Tensor*>& tensors) {
  for (auto* t : tensors) *t = tensor::to_device(*t, device);
}

at::ScalarType compute_dtype(at::ScalarType stored, const MixedPrecision& precision) {
  return at::isFloatingType(stored) ? precision.param_dtype.value_or(stored) : stored;
}

at::ScalarType reduce_dtype(const Segment& segment, const MixedPrecision& precision) {
  return precision.reduce_dtype.value_or(segment.compute);
}

void cast_buffers(torch::nn::Module& root, const std::unordered_set<const torch::nn::Module*>& ignored,
                  const MixedPrecision& precision) {
  if (!precision.buffer_dtype) return;
  at::NoGradGuard no_grad;
  const auto cast_own = [&](torch::nn::Module& module) {
    if (ignored.contains(&module)) return;
    for (auto& buffer : module.named_buffers(/*recurse=*/false))
      if (buffer.value().defined() && buffer.value().is_floating_point())
        buffer.value().set_data(buffer.value().to(*precision.buffer_dtype));
  };
  cast_own(root);  // which need not be held by a shared_ptr
  for (const auto& module : root.modules(/*include_self=*/false)) cast_own(*module);
}

void move_buffers(torch::nn::Module& root, at::Device device) {
  at::NoGradGuard no_grad;
  for (auto& buffer : root.buffers())
    if (buffer.defined() && buffer.device() != device) buffer.set_data(buffer.to(device));
}

}  // namespace tessera::fsdp
