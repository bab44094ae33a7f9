#pragma once
// IA3 (Liu et al. 2022) as PEFT has it: a vector for each adapted layer scales its outputs, or the inputs of a
// feedforward layer. Parameters: "...ia3_l.default", [out, 1] or [1, in].
#include <optional>

#include "peft/method.h"

namespace tessera::peft {

class Ia3 final : public LayerMethod {
 public:
  /// Ends of names of the target modules whose inputs are scaled; unset: the family's. Or one regular expression.
  std::optional<std::vector<std::string>> feedforward_modules;
  std::string feedforward_regex;
  bool init_ia3_weights = true;  // ones; false: normal values

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Ia3>(*this); }
  std::string type() const override { return "IA3"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  /// Whether the inputs of this adapted module are scaled, in place of its outputs.
  bool is_feedforward(const std::string& module) const;
  /// W and b times the vector, or the columns of W alone.
  at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                    const Values& adapter) const override;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  void attach_to(const Slot& slot) const override;
  std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const override;
};

}  // namespace tessera::peft
