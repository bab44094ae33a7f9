#pragma once
// torchao's AdamW with states of few bits.
#include <memory>
#include <vector>

#include "optim/block_optimizer.h"

namespace tessera::optim {

/// Both moments move towards their new values as torch.lerp does, and bias corrections are float32, as there.
struct TorchaoAdamWOptions : BlockOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
class TorchaoAdamW final : public BlockOptimizer {
 public:
  TorchaoAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
               const TorchaoAdamWOptions& options, std::shared_ptr<comm::Communicator> group);

 private:
  Update update(double lr, double weight_decay) const override;
  TorchaoAdamWOptions options_;
};

}  // namespace tessera::optim
