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

void scale_in_place(const std::vector<at::Tensor>& grads, double factor);

}  // namespace tessera::fsdp
