#pragma once
// An optimizer around another: what a PEFT method does to its parameters beside the other's step.
#include <memory>
#include <string>
#include <vector>

#include "optim/flat_numbers.h"
#include "tensor/offload_store.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::train {

class WrappedOptimizer : public optim::Optimizer {
 public:
  ~WrappedOptimizer() override;
  /// Whether or not the inner one is: all of these sum over ranks.
  bool collective() const final { return true; }
  std::vector<optim::StateSlice> state() override { return inner_->state(); }
  void keep_state_in(std::shared_ptr<tensor::OffloadStore> offload) final { inner_->keep_state_in(std::move(offload)); }

 protected:
  /// what: "ADALORA allocates ranks", for messages. ConfigError for optimizers that evaluate averages.
  WrappedOptimizer(std::unique_ptr<optim::Optimizer> inner, fsdp::FullyShardedDataParallel& model,
                   const std::string& what);

  /// With this optimizer's rate, count of steps and factor of gradients.
  void step_inner();
  /// A slice's masters in float32, where they lie or in `buffer`; and what became of them there goes back.
  float* read(const optim::ParameterSlice& slice, std::vector<float>& buffer) const;
  void write(const optim::ParameterSlice& slice, const float* values) const;
  /// They become those of all ranks together. Collective.
  void sum_over_ranks(std::vector<double>& numbers) const;

 private:
  /// On the CPU.
  optim::FlatNumbers numbers_of(const at::Tensor& parameter) const;

  std::unique_ptr<optim::Optimizer> inner_;
  std::shared_ptr<comm::Communicator> group_;
  std::shared_ptr<tensor::OffloadStore> offload_;
};

}  // namespace tessera::train
