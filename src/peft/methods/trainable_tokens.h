#pragma once
// Trainable tokens: chosen rows of the token table train, everything else is frozen.
#include "peft/method.h"

namespace tessera::peft {

class TrainableTokens final : public LayerMethod {
 public:
  std::vector<std::int64_t> token_indices;
  bool init_weights = true;  // the table's rows; false: normal values

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<TrainableTokens>(*this); }
  /// As in PEFT.
  bool has_modules_to_save() const override { return false; }
  bool keeps_base_weights() const override { return false; }
  bool adapts_tied_together() const override { return true; }
  std::string type() const override { return "TRAINABLE_TOKENS"; }
  void bind(ConfigKeys& keys) override;
  void resolve(const models::ModelConfig&) override {}  // the default target is known from the modules
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;
  /// PEFT writes a table's rows again for everything that is tied to it.
  std::vector<std::string> file_names(const std::string& parameter) const override;
  at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                    const Values& adapter) const override;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig&) const override { return {}; }
  void attach_to(const Slot& slot) const override;
  std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const override;

 private:
  std::string table_, head_;       // filled by attach(): the word embedding, and a head of its own
  std::vector<std::string> tied_;  // modules of upstream's tree that share it
};

}  // namespace tessera::peft
