#pragma once
// AdaLoRA's penalty on factors that are not orthogonal: weight * mean over all A and B of |A A' - I| (B' B for B,
// Frobenius), which PEFT adds to the loss, in evaluations too.
//
// Factors lie in units that are gathered one after the other, so the penalty is summed up while the layers run, and
// its gradient is added where that of the factor passes. A rank's share of it is the share of the batch's labels that
// its loss has: over ranks and accumulated batches the penalty counts once.
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <unordered_map>

#include "models/model.h"

namespace tessera::peft {

class OrthogonalPenalty : public models::InputAdapter {
 public:
  enum class Side { kRows, kColumns };  // which of a factor's shall be orthonormal

  OrthogonalPenalty(double weight, models::ModelKind kind) : weight_(weight), kind_(kind) {}
  /// How many factors the model has.
  void set_factors(std::int64_t count) { factors_ = count; }

  /// The factor itself. Its penalty counts in the model's pass that runs now, and its gradient gains the penalty's;
  /// each once, also of a layer that runs twice in a pass (DeBERTa-v2's query_proj with share_att_key).
  at::Tensor on(const at::Tensor& factor, Side side) const;

  models::ModelInput prepare(models::ModelInput in) const override;
  /// Adds to the loss.
  models::ModelOutput finish(models::ModelOutput out) const override;
  std::int64_t virtual_tokens() const override { return 0; }

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  double weight_;
  models::ModelKind kind_;
  std::int64_t factors_ = 1;
  /// Of the last pass; its gradient is taken later, perhaps after the layer has run again.
  struct Pass {
    bool runs = false;
    double factor = 0;                                     // of a norm in the loss
    double loss_scale = 1;                                 // of the loss in backward
    at::Tensor norms;                                      // their sum
    std::unordered_map<const at::TensorImpl*, Weak> uses;  // by factor: what the graph that is being made has of it
  };
  mutable Pass pass_;
};

}  // namespace tessera::peft
