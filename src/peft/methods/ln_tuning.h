#pragma once
// LN tuning (Zhao et al. 2024): the model's norms train, everything else is frozen. Here they train in place; PEFT
// trains copies, which the file holds.
#include <set>

#include "peft/method.h"

namespace tessera::peft {

class LnTuning final : public PeftMethod {
 public:
  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<LnTuning>(*this); }
  std::string type() const override { return "LN_TUNING"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule&, std::uint64_t) const override { return {}; }
  bool trains(const std::string& parameter) const override;
  std::string name_in_peft(const std::string& parameter) const override;
  std::string file_name(const std::string& parameter) const override;

 private:
  /// "x.norm.weight" -> "x.norm" + infix + ".weight" for a norm that trains, else the name itself.
  std::string with_infix(const std::string& parameter, const std::string& infix) const;
  std::set<std::string> norms_;  // module names, filled by attach()
};

}  // namespace tessera::peft
