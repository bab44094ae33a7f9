#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/decoder_layers.h"

namespace tessera::models {

/// A sparse mixture of gated feed-forward experts: each token goes to its `per_token` likeliest experts, whose results
/// are weighed by the router's probabilities, normalised over those chosen where the family says so (Mixtral does). One
/// more expert may get every token; its result is weighed by the sigmoid of its own gate (Qwen2-MoE).
class MixtureOfExperts : public nn::Block<at::Tensor, MlpOutput> {
 public:
  MixtureOfExperts(const families::DecoderConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  MlpOutput forward_impl(at::Tensor x) override;

 private:
  /// The experts' weighted results. chosen: [T, K], weights: the same, of x's dtype.
  at::Tensor together(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights) const;
  at::Tensor one_by_one(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights) const;

  std::string class_name_;
  std::int64_t per_token_;
  bool normalised_;
  std::shared_ptr<nn::Linear> gate_;
  DecoderMlp::Experts experts_;
  std::shared_ptr<DecoderMlp> shared_;  // may be null
  std::shared_ptr<nn::Linear> shared_gate_;
};

/// This rank's part of the load-balancing loss of Fedus et al. 2021 (Switch Transformers), equations 4 to 6, over all
/// layers' tokens; the parts of the ranks that sum_over_ranks (ModelInput) adds up over are summed.
/// router_logits: each [T, E]; visible: [T] uint8, undefined: every token counts.
at::Tensor load_balancing_loss(const std::vector<at::Tensor>& router_logits, const families::ExpertSettings& settings,
                               const at::Tensor& visible, const std::function<void(at::Tensor)>& sum_over_ranks);

}  // namespace tessera::models
