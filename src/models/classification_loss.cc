#include "models/classification_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>

#include <string>

#include "tessera/base/error.h"

namespace tessera::models {

at::Tensor classification_loss(const at::Tensor& logits, const at::Tensor& labels,
                               const families::ClassifierConfig& config, double normalizer,
                               const nn::TokenLoss& class_loss) {
  using families::ProblemType;
  ProblemType problem = config.problem;
  if (problem == ProblemType::kByLabels) {
    problem = config.num_labels == 1              ? ProblemType::kRegression
              : labels.scalar_type() == at::kLong ? ProblemType::kSingleLabel
                                                  : ProblemType::kMultiLabel;
  }
  const at::Tensor scores = logits.to(at::kFloat);
  at::Tensor sum;
  if (problem == ProblemType::kSingleLabel) {
    sum = nn::sum_token_losses(scores, labels.flatten(), class_loss);
  } else if (labels.numel() != scores.numel()) {
    throw DataError("the classifier has " + std::to_string(config.num_labels) + " outputs a row, the labels are " +
                    std::to_string(labels.numel()) + " numbers for " + std::to_string(scores.size(0)) + " rows");
  } else if (problem == ProblemType::kRegression) {
    sum = at::mse_loss(scores, labels.view_as(scores).to(at::kFloat), at::Reduction::Sum);
  } else {
    sum =
        at::binary_cross_entropy_with_logits(scores, labels.view_as(scores).to(at::kFloat), {}, {}, at::Reduction::Sum);
  }
  return (sum / normalizer).to(logits.scalar_type());
}

at::Tensor deberta_classification_loss(const at::Tensor& logits, const at::Tensor& labels,
                                       const families::ClassifierConfig& config, double normalizer,
                                       const nn::TokenLoss& class_loss) {
  const bool distributions =
      config.problem == families::ProblemType::kByLabels && config.num_labels > 1 && labels.sizes() == logits.sizes();
  if (!distributions) return classification_loss(logits, labels, config, normalizer, class_loss);
  const auto sum = (at::log_softmax(logits.to(at::kFloat), -1) * labels.to(at::kFloat)).sum();
  return (sum * (-static_cast<double>(config.num_labels) / normalizer)).to(logits.scalar_type());
}

}  // namespace tessera::models
