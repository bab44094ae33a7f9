#include "nn/ops/token_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>

namespace tessera::nn {

at::Tensor sum_token_losses(const at::Tensor& logits, const at::Tensor& labels, const TokenLoss& loss) {
  if (loss.kind == TokenLoss::Kind::kNll)
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100, loss.label_smoothing);
  const auto nll = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, -100);  // 0 where no label counts
  return (nll * nll.detach().neg().exp()).sum();
}

}  // namespace tessera::nn
