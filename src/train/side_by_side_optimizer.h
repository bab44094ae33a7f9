#pragma once
// The optimizer of adapters that train side by side: each steps as it would in a run of its own.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/schedule.h"

namespace tessera::train {

class SideBySideOptimizer final : public optim::Optimizer {
 public:
  /// A part of what trains: its own optimizer and rates, its gradients clipped by their own norm, and its own end.
  struct Part {
    std::unique_ptr<optim::Optimizer> optimizer;  // over this part's slices of the model's parameters
    std::set<std::string> parameters;             // their names
    std::unique_ptr<optim::Schedule> schedule;
    double max_grad_norm = 0;  // 0: no clipping
    std::int64_t steps = 0;    // it rests after so many: parameters and state stay as they are
    // Of the last step that it took:
    double grad_norm = 0;  // before clipping; 0 without clipping
  };

  /// `model` outlives this.
  SideBySideOptimizer(fsdp::FullyShardedDataParallel& model, std::vector<Part> parts);

  /// lr() is not used: the schedules know the rates.
  void step() override;
  bool collective() const override { return true; }
  bool runs_anywhere() const override;
  std::vector<optim::StateSlice> state() override;
  bool averages() const override;
  void show_average() override;
  void show_trained() override;

  const std::vector<Part>& parts() const { return parts_; }

 private:
  /// Collective.
  double norm_of(const Part& part) const;

  fsdp::FullyShardedDataParallel& model_;
  std::vector<Part> parts_;
};

}  // namespace tessera::train
