#pragma once
// Loss scaling for fp16 (Micikevicius et al. 2018), sharded: torch.amp.GradScaler's rules, agreed over all ranks.
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer, group);            // before clipping; optional otherwise
//   model.clip_grad_norm(1.0);
//   if (scaler.step(optimizer, group)) advance the learning rate schedule;
//   scaler.update();  optimizer.zero_grad();
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct GradScalerOptions {
  double init_scale = 65536.0, growth_factor = 2.0, backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps without overflow before the scale grows
};

class GradScaler {
 public:
  /// ConfigError unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1 and growth_interval > 0.
  explicit GradScaler(GradScalerOptions options = {});

  /// loss * scale. The loss must be fp32: 65536 times an fp16 loss overflows.
  at::Tensor scale(const at::Tensor& loss) const;
  double scale() const { return scale_; }

  /// Collective over all ranks that train together. Divides the gradients by the scale, once a step; returns whether
  /// they are finite on every rank.
  bool unscale(Optimizer& optimizer, comm::Communicator& group);
  /// Collective when unscale() was not called in this step, or when the optimizer is. Steps if the gradients are finite
  /// on every rank, else leaves parameters and optimizer alone and returns false.
  bool step(Optimizer& optimizer, comm::Communicator& group);
  /// After step(): halves the scale if the step was skipped, doubles it after growth_interval steps that were not.
  void update();

  /// For checkpoints: with scale(), all that is remembered between steps.
  std::int64_t growth_tracker() const { return growth_tracker_; }
  void load(double scale, std::int64_t growth_tracker);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::optional<bool> finite_;  // of this step's gradients, once unscaled
};

}  // namespace tessera::optim
