#pragma once
// Optimizers over flat 1-D shards. One step is one pass over memory per shard.
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::optim {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Uses each parameter's grad(); parameters without one are skipped.
  virtual void step() = 0;
  virtual void set_lr(double lr) = 0;
  virtual double lr() const = 0;
  void zero_grad();
  /// State by name, each laid out like the parameters ("exp_avg": one 1-D tensor for each parameter), and the step
  /// counter.
  virtual std::vector<std::pair<std::string, std::vector<at::Tensor>>> state() const = 0;
  virtual std::int64_t steps() const = 0;
  virtual void load_state(const std::vector<std::pair<std::string, std::vector<at::Tensor>>>& state,
                          std::int64_t steps) = 0;

 protected:
  explicit Optimizer(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {}
  std::vector<at::Tensor> parameters_;
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  /// Element ranges [begin, end) of parameter i that are not decayed (norm weights, biases).
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> no_decay = {};
};

/// Decoupled weight decay (Loshchilov & Hutter 2019), the update of torch.optim.AdamW. Moments in the parameter's
/// dtype.
class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options = {});
  ~AdamW() override;
  void step() override;
  void set_lr(double lr) override;
  double lr() const override;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> state() const override;
  std::int64_t steps() const override;
  void load_state(const std::vector<std::pair<std::string, std::vector<at::Tensor>>>& state,
                  std::int64_t steps) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Multiplier of the base rate at optimizer step `step` (0-based), warmup included: transformers' get_scheduler.
/// name: linear, cosine, constant, constant_with_warmup.
double schedule(const std::string& name, std::int64_t step, std::int64_t warmup_steps, std::int64_t total_steps);

}  // namespace tessera::optim
