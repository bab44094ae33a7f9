#pragma once
// LoRA as PEFT has it (Hu et al. 2021; rsLoRA: Kalajdzievski 2023; DoRA: Liu et al. 2024).
#include "peft/method.h"

namespace tessera::peft {

class Lora final : public LayerMethod {
 public:
  std::int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0.0;
  bool use_rslora = false;
  bool use_dora = false;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool lora_bias = false;                      // B has a bias
  std::vector<std::string> target_parameters;  // ends of names of weights, beside target_modules
  /// Tokens whose rows of the word embedding train, or of the named tables: [1, 2] or {"embed_tokens": [1, 2]}.
  nlohmann::json trainable_token_indices;
  /// true (Kaiming uniform A, zero B; embeddings: zero A, normal B) | gaussian (normal A, zero B) | false (both random)
  /// | orthogonal (B A = 0) | pissa (the weight's largest singular values) | olora (its QR decomposition); the last two
  /// take the first product off the base.
  std::string init_lora_weights = "true";

  std::int64_t rank_of(const std::string& module) const;
  double scaling_of(const std::string& module) const;  // alpha/r, or alpha/sqrt(r)

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Lora>(*this); }
  std::string type() const override { return "LORA"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::vector<FromWeight> from_weights_of_saved(const nn::HookedModule& model) const override;
  std::string file_name(const std::string& parameter) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  /// W + scaling B A, with DoRA times magnitude / its norms.
  at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                    const Values& adapter) const override;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  void attach_to(const Slot& slot) const override;
  std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const override;

 private:
  bool decomposes() const { return init_lora_weights == "pissa" || init_lora_weights == "olora"; }
  /// Which tokens' rows train, by table; from trainable_token_indices.
  std::map<std::string, std::vector<std::int64_t>> chosen_tokens(const nn::HookedModule& model,
                                                                 const models::ModelConfig& family) const;
  std::map<std::string, std::vector<std::int64_t>> tokens_;  // filled by attach()
  at::Tensor summed(const Slot& slot, const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) const;
};

}  // namespace tessera::peft
