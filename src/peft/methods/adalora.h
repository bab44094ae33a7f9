#pragma once
// AdaLoRA (Zhang et al. 2023): W + alpha / init_r * B (E * A), where rows of A and columns of B that matter little lose
// their E while training goes on (train/rank_allocation.h). A file holds the ranks that are left.
#include <map>

#include "peft/methods/orthogonal_penalty.h"
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class AdaLora final : public FactorMethod {
 public:
  std::int64_t init_r = 12, target_r = 8;  // of a layer at the start; of the mean layer at the end
  std::int64_t tinit = 0, tfinal = 0;      // steps before and after the ranks fall
  std::int64_t delta_t = 1;                // steps from one allocation to the next
  std::int64_t total_step = 0;             // 0: not known yet
  double beta1 = 0.85, beta2 = 0.85;       // of the averages of sensitivity and of uncertainty
  double orth_reg_weight = 0.5;
  std::int64_t r = 8;  // PEFT keeps it and does not use it
  double lora_alpha = 8, lora_dropout = 0;
  std::string init_lora_weights = "true";  // true (E zero) | false (all normal); other words are as true

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<AdaLora>(*this); }
  std::string type() const override { return "ADALORA"; }
  std::string class_name() const override { return "adalora.SVDLinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  /// ConfigError where the steps leave no time for an allocation, or the ranks cannot fall.
  void check_schedule() const;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  Values in_file(const Values& adapters) const override;
  /// PEFT keeps a number, ranknum, in each layer.
  std::int64_t other_parameters() const override { return static_cast<std::int64_t>(ranks_.size()); }

  /// False where the ranks came from a file, allocated already.
  bool allocates() const { return rank_pattern_.is_null(); }
  /// By adapted layer: which of its ranks are kept, [rank] float32, 1 or 0; all -1 until there was an allocation.
  const std::map<std::string, at::Tensor>& kept() const { return kept_; }

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;

 private:
  std::int64_t rank_of(const std::string& layer) const;
  /// Of what was allocated in this run: the indices of the ranks that the file holds; undefined: all.
  at::Tensor selected(const std::string& layer) const;
  /// rank_pattern as the configuration has it.
  nlohmann::json pattern() const;

  nlohmann::json rank_pattern_;                // read: {"model.layers.0.self_attn.q_proj.lora_E": [true, false]}
  std::map<std::string, std::int64_t> ranks_;  // filled by attach()
  std::map<std::string, at::Tensor> kept_;     // likewise, where the ranks are allocated
  std::shared_ptr<OrthogonalPenalty> penalty_;
};

}  // namespace tessera::peft
