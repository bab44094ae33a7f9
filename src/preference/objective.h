#pragma once
// What a run of preference training minimises, whichever of TRL's trainers it stands for.
#include <optional>
#include <string>

#include "preference/loss.h"

namespace tessera::preference {

enum class Method { kDpo, kOrpo, kCpo, kKto, kReward };

struct Objective {
  Method method = Method::kDpo;
  DpoOptions dpo = {};
  double orpo_beta = 0.1;
  CpoOptions cpo = {};
  KtoOptions kto = {};
  RewardOptions reward = {};

  Loss operator()(const Completions& batch) const;
  /// The table needs kRefLogps.
  bool needs_reference() const { return method == Method::kDpo || method == Method::kKto; }
  /// And the columns of mismatched completions.
  bool needs_mismatched() const { return method == Method::kKto && kto.loss == KtoLoss::kKto; }
  bool scores_prompts() const { return method == Method::kOrpo; }
  std::int64_t sides() const { return method == Method::kKto ? 1 : 2; }
  std::optional<double> ld_alpha() const { return method == Method::kDpo ? dpo.ld_alpha : std::nullopt; }
};

/// Sets an argument of TRL's configuration from its value's text ("0.1", "true", "ipo", "none"; lists by commas).
/// False: the method has no argument of this name. ConfigError for a value that is none of it.
bool set_argument(Objective& objective, const std::string& name, const std::string& value);

}  // namespace tessera::preference
