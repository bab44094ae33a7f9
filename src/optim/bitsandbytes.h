#pragma once
// The rules that bitsandbytes has with 8 and 32 bits, by its names, defaults and order of operations on CPUs.
#include <memory>
#include <vector>

#include "optim/block_optimizer.h"

namespace tessera::optim {

/// Adam with decoupled weight decay.
struct BnbAdamOptions : BlockOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};
class BnbAdam final : public BlockOptimizer {
 public:
  BnbAdam(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BnbAdamOptions& options,
          std::shared_ptr<comm::Communicator> group);

 private:
  Update update(double lr, double weight_decay) const override;
  BnbAdamOptions options_;
};

struct BnbLionOptions : BlockOptions {
  double beta1 = 0.9, beta2 = 0.99;
};
class BnbLion final : public BlockOptimizer {
 public:
  BnbLion(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BnbLionOptions& options,
          std::shared_ptr<comm::Communicator> group);

 private:
  Update update(double lr, double weight_decay) const override;
  BnbLionOptions options_;
};

/// Pagliardini et al., "The AdEMAMix Optimizer", 2024. t_alpha, t_beta3: steps in which alpha and beta3 grow to their
/// values; 0: they have them from the first. state1 holds the fast and the slow average.
struct AdEmaMixOptions : BlockOptions {
  double beta1 = 0.9, beta2 = 0.999, beta3 = 0.9999, alpha = 5, eps = 1e-8;
  double t_alpha = 0, t_beta3 = 0;
};
class AdEmaMix final : public BlockOptimizer {
 public:
  AdEmaMix(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const AdEmaMixOptions& options,
           std::shared_ptr<comm::Communicator> group);

 private:
  Update update(double lr, double weight_decay) const override;
  AdEmaMixOptions options_;
};

/// Weight decay is added to the gradient. Neither centred nor with momentum, as there.
struct BnbRmsPropOptions : BlockOptions {
  double alpha = 0.99, eps = 1e-8;
};
class BnbRmsProp final : public BlockOptimizer {
 public:
  BnbRmsProp(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const BnbRmsPropOptions& options,
             std::shared_ptr<comm::Communicator> group);

 private:
  Update update(double lr, double weight_decay) const override;
  BnbRmsPropOptions options_;
};

}  // namespace tessera::optim
