#pragma once
// How AdaLoRA (Zhang et al. 2023) allocates ranks, as PEFT's RankAllocator does after each step of the optimizer: an
// element's importance is |value * gradient| smoothed, times how much that fluctuates; a rank's is E's plus the means
// of A's row and of B's column; all ranks of all layers compete for a budget that falls from init_r to target_r.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peft/methods/adalora.h"
#include "train/wrapped_optimizer.h"

namespace tessera::train {

/// Steps another optimizer, then allocates. The averages are state like the other's, so that a run goes on bit for bit.
class RankAllocatingOptimizer final : public WrappedOptimizer {
 public:
  /// method: what the model was adapted with; outlives this, as `model` does.
  RankAllocatingOptimizer(std::unique_ptr<optim::Optimizer> inner, fsdp::FullyShardedDataParallel& model,
                          peft::AdaLora& method);

  /// ConfigError where the method's total_step is not known, or ranks cannot fall.
  void step() override;
  std::vector<optim::StateSlice> state() override;

  const peft::AdaLora& method() const { return method_; }
  /// Of the last allocation, by layer.
  const std::map<std::string, std::vector<float>>& scores() const { return scores_; }
  /// Where the method does not say total_step.
  void set_total_steps(std::int64_t steps);

 private:
  enum class Factor { kA, kE, kB };
  /// A part of a factor on this rank.
  struct Part {
    Factor factor;
    std::string layer;
    optim::ParameterSlice slice;
    std::int64_t columns = 1;             // of the factor
    at::Tensor sensitivity, uncertainty;  // [slice.numel] float32, averages
  };
  void check_ranks() const;
  void update_averages(double gradient_factor);
  /// Collective: the score of each rank of each layer.
  std::map<std::string, std::vector<float>> score() const;
  void allocate(std::int64_t budget);
  void forget_averages();
  /// E of what is not kept becomes zero.
  void mask();

  peft::AdaLora& method_;
  std::vector<Part> parts_;
  std::map<std::string, std::vector<float>> scores_;
};

/// Of an optimizer that allocates ranks; others are left alone.
void set_total_steps(optim::Optimizer& optimizer, std::int64_t steps);

}  // namespace tessera::train
