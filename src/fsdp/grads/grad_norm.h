#pragma once
// Norms of sharded gradients. Sums run in double over fixed chunks, so that neither threads nor their number change the
// bits.
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

/// Collective. p-norm of all elements of all ranks' gradients (undefined ones are skipped); p = infinity: the largest
/// magnitude.
double global_norm(const std::vector<at::Tensor>& grads, double p, comm::Communicator& group);

/// min(1, max_norm / (norm + 1e-6)); 1 where that is not a number.
inline double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

void scale_in_place(const std::vector<at::Tensor>& grads, double factor);

}  // namespace tessera::fsdp
