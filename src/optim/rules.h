#pragma once
// The elementwise rules. Options carry the names and defaults of the upstream classes; AdamW is public (optimizer.h).
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

/// torch.optim.Adam: weight decay is added to the gradient. States exp_avg, exp_avg_sq, max_exp_avg_sq (amsgrad).
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;
};
class Adam final : public FlatOptimizer {
 public:
  Adam(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdamOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  AdamOptions options_;
};

/// AdamW as transformers had it (hf_adamw_update()). States exp_avg, exp_avg_sq.
class HfAdamW final : public FlatOptimizer {
 public:
  /// Of the options amsgrad and no_decay are not for it.
  HfAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdamWOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  AdamWOptions options_;
};

/// torch.optim.SGD. State momentum_buffer, with momentum.
struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
class Sgd final : public FlatOptimizer {
 public:
  Sgd(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const SgdOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  SgdOptions options_;
};

/// Chen et al. 2023, as bitsandbytes' Lion computes it. State exp_avg.
struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};
class Lion final : public FlatOptimizer {
 public:
  Lion(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const LionOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  LionOptions options_;
};

/// torch.optim.RMSprop. States square_avg, grad_avg (centered), momentum_buffer (momentum).
struct RmsPropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;
};
class RmsProp final : public FlatOptimizer {
 public:
  RmsProp(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const RmsPropOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  RmsPropOptions options_;
};

/// torch.optim.Adagrad. State sum.
struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
};
class Adagrad final : public FlatOptimizer {
 public:
  Adagrad(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdagradOptions& options);

 private:
  Update update(double lr, double weight_decay) const override;
  AdagradOptions options_;
};

}  // namespace tessera::optim
