#pragma once
// The losses of preference training as functions of a batch's table (completions.h), as TRL 1.16 defines them. Pure:
// no model, no ranks. Gradients go to the table's differentiable columns.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "preference/completions.h"

namespace tessera::preference {

struct Loss {
  at::Tensor loss;    // scalar float64, of the batch
  at::Tensor losses;  // [N] of the pairs (KTO: of the rows, desirable ones first); undefined for sums of several losses
  at::Tensor chosen_rewards, rejected_rewards;          // [N], or of KTO's desirable and undesirable rows
  std::vector<std::pair<std::string, double>> metrics;  // TRL's names, in its order
};

enum class DpoLoss {
  kSigmoid,
  kHinge,
  kIpo,
  kExoPair,
  kNcaPair,
  kRobust,
  kBcoPair,
  kSppoHard,
  kAot,
  kAotUnpaired,
  kApoZero,
  kApoDown,
  kDiscopop,
  kSft,
  kSigmoidNorm,
};
/// "sigmoid"; ConfigError lists the names.
DpoLoss dpo_loss_named(const std::string& name);
const std::vector<std::pair<std::string, DpoLoss>>& dpo_losses();

enum class Divergence { kReverseKl, kForwardKl, kJs, kAlpha };

struct DpoOptions {
  std::vector<DpoLoss> losses = {DpoLoss::kSigmoid};
  std::vector<double> weights = {};  // one for each loss; empty: 1 each
  double beta = 0.1, label_smoothing = 0, discopop_tau = 0.05;
  std::optional<double> ld_alpha = {};  // used where the table is made
  bool use_weighting = false;           // WPO
  Divergence divergence = Divergence::kReverseKl;
  double alpha_coefficient = 0.5;  // of kAlpha
};
/// Rafailov et al. 2023 and what followed it; needs the reference's column.
Loss dpo_loss(const Completions& pairs, const DpoOptions& options);

/// Hong et al. 2024: -beta log sigmoid(log odds) and the mean loss of the chosen rows' tokens, prompts too.
Loss orpo_loss(const Completions& pairs, double beta);

enum class CpoLoss { kSigmoid, kHinge, kIpo, kSimpo };
struct CpoOptions {
  CpoLoss loss = CpoLoss::kSigmoid;
  double beta = 0.1, label_smoothing = 0, cpo_alpha = 1.0, simpo_gamma = 0.5;
  double alpha = 0;  // AlphaPO's
};
/// Xu et al. 2024; SimPO (Meng et al. 2024) and AlphaPO (Gupta et al. 2025) are its settings.
Loss cpo_loss(const Completions& pairs, const CpoOptions& options);

enum class KtoLoss { kKto, kApoZeroUnpaired };
struct KtoOptions {
  KtoLoss loss = KtoLoss::kKto;
  double beta = 0.1, desirable_weight = 1, undesirable_weight = 1;
};
/// Ethayarajh et al. 2024, over single rows.
Loss kto_loss(const Completions& rows, const KtoOptions& options);
/// What TRL advises where good and bad answers are not weighed by their numbers (the paper's equation 8); empty:
/// nothing.
std::string note_on_balance(const KtoOptions& options, std::int64_t desirable, std::int64_t rows);

struct RewardOptions {
  std::optional<double> center_rewards_coefficient = {};
};
/// Bradley-Terry over a classifier's scores (columns kReward, kMargin; margins that rows do not have are 0).
Loss reward_loss(const Completions& pairs, const RewardOptions& options);

}  // namespace tessera::preference
