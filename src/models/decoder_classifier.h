#pragma once
#include <memory>
#include <string>

#include "models/causal_lm.h"

namespace tessera::models {

/// A decoder with transformers' head of sequence classification: `score` (no bias) of the final state of each row's
/// last token whose id is not the padding token's. The attention mask plays no part in that. It does not generate.
class DecoderClassifier final : public CausalLm {
 public:
  DecoderClassifier(families::DecoderConfig config, at::ScalarType dtype);
  std::string class_name() const override;
  ModelKind kind() const override { return ModelKind::kSequenceClassification; }
  std::shared_ptr<Cache> make_cache() const override;
  bool untie_head() override { return false; }

 protected:
  /// in.labels as in classification_loss(). out.logits: [B, num_labels].
  ModelOutput compute(ModelInput in) override;

 private:
  at::Tensor last_tokens(const at::Tensor& ids) const;
  std::shared_ptr<nn::Linear> score_;
};

}  // namespace tessera::models
