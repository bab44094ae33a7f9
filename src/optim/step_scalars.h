#pragma once
// The scalars of one step of rules that several optimizers share.
#include <cstdint>

#include "tessera/optim/update.h"

namespace tessera::optim {

/// Of the Adam family and Lion; a rule takes what it knows.
struct StepScalars {
  std::int64_t steps = 1;  // this one counted
  double lr = 0, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, eps = 0;
};

/// torch.optim's Adam, without decay: what differs between Adam and AdamW.
Update torch_adam_update(const StepScalars& s);
/// bitsandbytes' AdamW; torchdistx's has the same corrections.
Update bnb_adamw_update(const StepScalars& s);
/// AdamW as transformers had it: both corrections in the rate, and decay after the step. GaLore, APOLLO and LoRA-FA are
/// written on it.
Update hf_adamw_update(const StepScalars& s);
Update lion_update(const StepScalars& s);

}  // namespace tessera::optim
