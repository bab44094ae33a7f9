#pragma once
// Where the gradient of a language model's output head is made.
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/lookup.h"
#include "tensor/gradient_place.h"

namespace tessera::nn {

/// The weight's gradient while it is made, by parts of classes: in the place where gradients are collected, if that is
/// free, or here.
class HeadGradient : public torch::CustomClassHolder {
 public:
  /// weight: [classes, dim].
  explicit HeadGradient(const at::Tensor& weight);

  bool is_collected() const { return prepared_ != nullptr; }
  at::Tensor& value() { return prepared_ ? prepared_->memory : own_; }

  /// Memory of the gradients of classes [first, first + classes), for other numbers until these are set: [rows,
  /// classes], contiguous, at most rows_of_room() rows, of which there are none where gradients are narrower.
  at::Tensor room(std::int64_t first, std::int64_t classes, std::int64_t rows, at::ScalarType dtype);
  std::int64_t rows_of_room(at::ScalarType dtype);
  /// g^T h is the gradient of as many classes from `first` on, or is added to it. g: [rows, classes], h: [rows, dim].
  void set(std::int64_t first, const at::Tensor& g, const at::Tensor& h);
  void add(std::int64_t first, const at::Tensor& g, const at::Tensor& h);

  /// Where the collector of gradients waits for it, into `slot` if there is one, or as the result, for autograd.
  at::Tensor hand_over(const GradientSlot& slot);

 private:
  std::shared_ptr<tensor::PreparedGradient> prepared_;
  at::Tensor own_;
};

}  // namespace tessera::nn
