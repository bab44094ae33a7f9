#pragma once
// LoRA as PEFT has it (Hu et al. 2021; rsLoRA: Kalajdzievski 2023; DoRA: Liu et al. 2024).
#include "peft/method.h"
#include "peft/methods/activated_tokens.h"

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
  /// | orthogonal (B A = 0) | pissa (the weight's largest singular values) | pissa_niter_N (the same by N rounds of a
  /// randomised decomposition) | olora (its QR decomposition); these three take the first product off the base | loftq
  /// (what packing took from the weight) | eva (what layers see of the training rows: peft/eva gives such an adapter
  /// its ranks and A) | mica (a frozen B of the weight's smallest singular values, and A zero).
  std::string init_lora_weights = "true";
  nlohmann::json loftq_config = nlohmann::json::object();  // {"loftq_bits": 4, "loftq_iter": 1}
  nlohmann::json eva_config;                               // null or an object, EvaSettings
  nlohmann::json layer_replication;  // null or ranges of layers, [[0, 4], [2, 5]] (peft/replication)
  /// Ids of the sequence from which on the adapter acts (aLoRA, activated_tokens.h); null: it acts everywhere.
  nlohmann::json alora_invocation_tokens;
  /// No key: adapters that take a first product off the base are saved as LoRA of twice the rank beside the base as it
  /// is, PEFT's path_initial_model_for_weight_conversion.
  bool convert_to_lora = false;

  std::int64_t rank_of(const std::string& module) const;
  double scaling_of(const std::string& module) const;  // alpha/r, or alpha/sqrt(r)
  /// How often LoftQ packs; 1 for other beginnings.
  std::int64_t loftq_iterations() const;

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Lora>(*this); }
  std::string type() const override { return "LORA"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void check_new() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::vector<FromWeight> from_weights_of_saved(const nn::HookedModule& model) const override;
  std::string name_in_peft(const std::string& parameter) const override;
  std::string file_name(const std::string& parameter) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  Values in_file(const Values& adapters) const override;
  std::unique_ptr<PeftMethod> as_saved() const override;
  /// Activation sits on the word embedding, which stays the base's.
  bool keeps_base_weights() const override {
    return alora_invocation_tokens.is_null() && trainable_token_indices.is_null();
  }
  void check_can_merge(const nn::HookedModule& adapted) const override;
  std::int64_t other_parameters() const override { return frozen_; }
  /// W + scaling B A, with DoRA times magnitude / its norms.
  at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                    const Values& adapter) const override;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  void attach_to(const Slot& slot) const override;
  std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const override;

 private:
  /// A module's own, or that of its weight where target_parameters names it, as PEFT looks for it.
  std::string name_in_patterns(const std::string& module) const;
  bool decomposes() const { return init_lora_weights.starts_with("pissa") || init_lora_weights == "olora"; }
  /// Rounds of the randomised decomposition; 0: it is exact.
  std::int64_t rounds() const;
  /// The file holds another kind of adapter. A start that was drawn cannot be made again from the configuration.
  bool converts() const { return decomposes() && (convert_to_lora || rounds() > 0); }
  bool mica() const { return init_lora_weights == "mica"; }
  std::vector<FromWeight> minors(const nn::HookedModule& model) const;
  void freeze_b(const Slot& slot);
  /// ConfigError where a decomposition has fewer parts.
  void check_rank(const Slot& slot, std::int64_t rank) const;
  std::vector<FromWeight> starts(const nn::HookedModule& model, std::uint64_t seed) const;
  std::vector<FromWeight> packing_losses(const nn::HookedModule& model) const;
  void activate(models::Model& model, const models::ModelConfig& family, const std::vector<std::string>& adapted) const;
  /// Which tokens' rows train, by table; from trainable_token_indices.
  std::map<std::string, std::vector<std::int64_t>> chosen_tokens(const models::Model& model,
                                                                 const models::ModelConfig& family) const;
  std::map<std::string, std::vector<std::int64_t>> tokens_;  // filled by attach()
  std::shared_ptr<ActivatedTokens> activated_;               // likewise; null: no aLoRA
  std::int64_t frozen_ = 0;                                  // likewise: elements of B that do not train
  at::Tensor summed(const Slot& slot, const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) const;
};

/// ConfigError: "LoRA option 'KEY' WHY".
[[noreturn]] void refuse_setting(const std::string& key, const std::string& why);

}  // namespace tessera::peft
