#include "optim/torchao.h"

#include <cmath>

namespace tessera::optim {

TorchaoAdamW::TorchaoAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                           const TorchaoAdamWOptions& options, std::shared_ptr<comm::Communicator> group)
    : BlockOptimizer(std::move(parameters), std::move(slices), options,
                     {{.number = 1}, {.number = 2, .with_signs = false}}, std::move(group)),
      options_(options) {}

Update TorchaoAdamW::update(double lr, double weight_decay) const {
  const auto& o = options_;
  const auto correction = [&](double beta) {
    return 1 - std::pow(static_cast<float>(beta), static_cast<float>(steps_));
  };
  Update u;
  u.rule = Rule::kTorchaoAdam;
  u.lr = lr;
  u.decay = static_cast<double>(static_cast<float>(lr) * static_cast<float>(weight_decay));
  u.beta1 = o.beta1;
  u.beta2 = o.beta2;
  u.eps = o.eps;
  u.correction1 = correction(o.beta1);
  u.correction2 = std::sqrt(correction(o.beta2));
  return u;
}

}  // namespace tessera::optim
