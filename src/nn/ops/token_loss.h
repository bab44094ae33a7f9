#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// What a language model pays for one token, whose label y has probability p_y among its classes.
struct TokenLoss {
  /// nll: -log p_y. dft: -p_y log p_y, where the first factor is a constant to backward (dynamic fine-tuning, Wu et al.
  /// 2025, "On the Generalization of SFT").
  enum class Kind { kNll, kDft } kind = Kind::kNll;
  /// nll only: this part of the loss is the mean of -log p over all classes (Szegedy et al. 2016, as transformers'
  /// LabelSmoother).
  double label_smoothing = 0;
  bool is_plain() const { return kind == Kind::kNll && label_smoothing == 0; }
};

/// The sum over rows. logits: [rows, classes]; labels: [rows] int64, -100 counts for nothing.
at::Tensor sum_token_losses(const at::Tensor& logits, const at::Tensor& labels, const TokenLoss& loss);

}  // namespace tessera::nn
