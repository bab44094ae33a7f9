#pragma once
// AnyPrecisionAdamW of torchdistx: AdamW whose states have dtypes of their own, and, with Kahan summation, a state that
// keeps what rounding takes from 16-bit parameters and gives it back in later steps.
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

struct AnyPrecisionOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool use_kahan_summation = false;
  at::ScalarType momentum_dtype = at::kFloat, variance_dtype = at::kFloat, compensation_buffer_dtype = at::kBFloat16;
};

/// States exp_avg, exp_avg_sq, compensation.
class AnyPrecisionAdamW final : public FlatOptimizer {
 public:
  AnyPrecisionAdamW(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                    const AnyPrecisionOptions& options);
  bool runs_anywhere() const override { return false; }

 private:
  Update update(double lr, double weight_decay) const override;
  Update update_of(const ParameterSlice& slice) const override;
  AnyPrecisionOptions options_;
};

}  // namespace tessera::optim
