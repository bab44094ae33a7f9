#pragma once
// Rules that look at each parameter as a whole before they update its elements: at a sum over them on all ranks.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

class WholeParameterOptimizer : public FlatOptimizer {
 public:
  void step() override;
  bool collective() const override { return group_ && group_->size() > 1; }
  bool runs_anywhere() const override { return false; }

 protected:
  WholeParameterOptimizer(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, double lr,
                          double weight_decay, std::vector<std::string> states,
                          std::shared_ptr<comm::Communicator> group);
  /// What is summed, over `numel` gradients and elements of state `summed_state()`, in double.
  virtual double sum(std::int64_t numel, const float* gradients, const float* state) const = 0;
  virtual std::size_t summed_state() const { return 0; }
  /// The sum over the parameter that this slice is of, in this step; 0 where no rank has a gradient.
  double sum_of(const ParameterSlice& slice) const;
  double factor() const { return factor_; }  // on the gradients in this step

 private:
  double sum_of_slice(const ParameterSlice& slice, const at::Tensor& grad);
  std::shared_ptr<comm::Communicator> group_;
  std::vector<std::string> names_;  // of the parameters, in the order of the slices
  std::vector<double> sums_;        // by name
  double factor_ = 1;
};

/// optimi's StableAdamW (Wortsman et al. 2023): AdamW, whose rate for a parameter is divided by the root mean square of
/// g / sqrt(exp_avg_sq) where that is above 1. decouple_lr: decay by lr / max_lr. States exp_avg, exp_avg_sq.
struct StableAdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.99, eps = 1e-6, weight_decay = 0.01;
  bool decouple_lr = false;
  double max_lr = 0;  // 0: lr
};
class StableAdamW final : public WholeParameterOptimizer {
 public:
  StableAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const StableAdamWOptions& options,
              std::shared_ptr<comm::Communicator> group);

 protected:
  double sum(std::int64_t numel, const float* gradients, const float* state) const override;
  std::size_t summed_state() const override { return 1; }
  Update update(double lr, double weight_decay) const override;
  Update update_of(const ParameterSlice& slice) const override;

 private:
  StableAdamWOptions options_;
};

/// grokadamw's GrokAdamW, without a grokking signal, as Trainer runs it: each parameter's gradient is clipped by its
/// own norm and joined by lamb times its slow average; beta1 shrinks by gamma from one parameter of a group (decayed,
/// not decayed) to the next. States exp_avg, exp_avg_sq, grok_ema.
struct GrokAdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double alpha_init = 0.98, lamb = 2, gamma = 0.1, gradient_clipping = 1;
};
class GrokAdamW final : public WholeParameterOptimizer {
 public:
  GrokAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const GrokAdamWOptions& options,
            std::shared_ptr<comm::Communicator> group);

 protected:
  double sum(std::int64_t numel, const float* gradients, const float* state) const override;
  Update update(double lr, double weight_decay) const override;
  Update update_of(const ParameterSlice& slice) const override;

 private:
  GrokAdamWOptions options_;
  std::vector<std::pair<std::string, int>> place_in_group_;  // by name, sorted
};

}  // namespace tessera::optim
