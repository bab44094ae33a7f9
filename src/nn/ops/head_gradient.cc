#include "nn/ops/head_gradient.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "nn/ops/gemm.h"

namespace tessera::nn {

HeadGradient::HeadGradient(const at::Tensor& weight) : prepared_(tensor::reserve_gradient(weight)) {
  if (prepared_ && prepared_->filled) prepared_.reset();  // what is there must survive if no backward comes
  if (!prepared_) own_ = at::empty_like(weight, at::MemoryFormat::Contiguous);
}

at::Tensor HeadGradient::room(std::int64_t first, std::int64_t classes, std::int64_t rows, at::ScalarType dtype) {
  return value().narrow(0, first, classes).view({-1}).view(dtype).narrow(0, 0, rows * classes).view({rows, classes});
}

// Not more where gradients are wider: which rows are multiplied together shall not depend on where they are collected.
std::int64_t HeadGradient::rows_of_room(at::ScalarType dtype) {
  return value().element_size() < static_cast<std::int64_t>(at::elementSize(dtype)) ? 0 : value().size(1);
}

void HeadGradient::set(std::int64_t first, const at::Tensor& g, const at::Tensor& h) {
  const auto part = value().narrow(0, first, g.size(1));
  if (part.scalar_type() == g.scalar_type())
    gemm_to(part, g.t(), h);
  else
    part.copy_(gemm(g.t(), h));
}

void HeadGradient::add(std::int64_t first, const at::Tensor& g, const at::Tensor& h) {
  const auto part = value().narrow(0, first, g.size(1));
  if (part.scalar_type() == g.scalar_type())
    gemm_add(part, g.t(), h);
  else
    part.add_(gemm(g.t(), h));
}

at::Tensor HeadGradient::hand_over(const GradientSlot& slot) {
  if (prepared_) {
    prepared_->place->commit(prepared_);
    return {};
  }
  if (!slot) return std::move(own_);
  slot->value = std::move(own_);
  return {};
}

}  // namespace tessera::nn
