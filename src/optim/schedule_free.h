#pragma once
// Schedule-Free AdamW, RAdam and SGD (Defazio et al. 2024), as schedulefree 1.4 computes them. Gradients are taken at
// points y, which the parameters hold while training; a base optimizer walks along z; the result is x, the weighted
// average of z, and y = beta1 x + (1 - beta1) z.
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

struct ScheduleFreeOptions {
  enum class Base { kAdamW, kRAdam, kSgd } base = Base::kAdamW;
  double lr = 2.5e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;  // kSgd: beta1 is the momentum
  double warmup_steps = 0;                                                       // not kRAdam
  double r = 0, weight_lr_power = 2;  // an average's weights are t^r * (largest rate so far)^weight_lr_power
  bool silent_sgd_phase = true;       // kRAdam: nothing moves before its variance is known
};

/// States z, exp_avg_sq (not kSgd), and of the first parameter `average`: the sum of weights and the largest rate.
class ScheduleFree final : public FlatOptimizer {
 public:
  /// ConfigError unless 0 < beta1 < 1.
  ScheduleFree(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
               const ScheduleFreeOptions& options);
  void step() override;
  std::vector<StateSlice> state() override;
  bool averages() const override { return true; }
  void show_average() override;
  void show_trained() override;

 private:
  Update update(double lr, double weight_decay) const override;
  /// Of this step, to the rate: warm-up, or RAdam's rectification.
  double rate_factor() const;
  double rectification() const;
  ScheduleFreeOptions options_;
  at::Tensor average_;  // float64: sum of weights, largest rate
  double mix_ = 0;      // of this step
  bool shown_ = false;  // the parameters hold x
};

}  // namespace tessera::optim
