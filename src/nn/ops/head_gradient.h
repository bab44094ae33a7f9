#pragma once
// What the operations that never store a language model's logits have in common: they are made in pieces of rows, and
// the head's gradient is a sum over these.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "nn/ops/gemm.h"
#include "nn/ops/lookup.h"
#include "tensor/gradient_place.h"
#include "tessera/base/error.h"

namespace tessera::nn {

/// Rows whose logits are made at a time.
inline std::int64_t rows_of_a_piece(const at::Tensor& hidden, std::int64_t classes) {
  constexpr std::int64_t kLogitsBytes = 16 << 20;
  return std::max<std::int64_t>(1, kLogitsBytes / (classes * static_cast<std::int64_t>(hidden.element_size())));
}

/// labels: int64, contiguous, on the CPU; negative ones count for nothing. DataError names one that the head has no
/// class for.
inline void check_labels(const at::Tensor& labels, std::int64_t classes) {
  const auto* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    if (label[i] >= classes)
      throw DataError("label " + std::to_string(label[i]) + " is outside the output head's " + std::to_string(classes) +
                      " classes; the tokenizer does not belong to this model");
}

/// The weight's gradient while it is made: in the place where gradients are collected, if that is free, or here.
struct HeadGradient : torch::CustomClassHolder {
  static constexpr std::int64_t kClassesAtOnce = 2048;  // whose gradient is made before it is widened

  std::shared_ptr<tensor::PreparedGradient> prepared;
  at::Tensor own;

  explicit HeadGradient(const at::Tensor& weight) : prepared(tensor::reserve_gradient(weight)) {
    if (prepared && prepared->filled) prepared.reset();  // what is there must survive if no backward comes
  }
  at::Tensor& value() { return prepared ? prepared->memory : own; }

  /// Of no rows: on a rank whose batch has no labels the parameter has a gradient as on the others.
  void clear(const at::Tensor& weight) {
    if (!prepared) own = at::empty_like(weight);
    value().zero_();
  }

  /// g: [rows, classes], h: [rows, dim], of the first piece or one more.
  void add(const at::Tensor& g, const at::Tensor& h, bool first) {
    if (!prepared && first) {
      own = gemm(g.t(), h);
    } else if (value().scalar_type() != g.scalar_type()) {
      for (std::int64_t c = 0; c < g.size(1); c += kClassesAtOnce) {
        const auto count = std::min(kClassesAtOnce, g.size(1) - c);
        const auto piece = gemm(g.narrow(1, c, count).t(), h);
        const auto sum = value().narrow(0, c, count);
        first ? sum.copy_(piece) : sum.add_(piece);
      }
    } else if (first) {
      gemm_to(value(), g.t(), h);
    } else {
      gemm_add(value(), g.t(), h);
    }
  }

  /// Where the collector of gradients waits for it, into `slot` if there is one, or as the result, for autograd.
  at::Tensor hand_over(const GradientSlot& slot) {
    if (prepared) {
      prepared->place->commit(prepared);
      return {};
    }
    if (!slot) return std::move(own);
    slot->value = std::move(own);
    return {};
  }
};

}  // namespace tessera::nn
