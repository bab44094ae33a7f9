#pragma once
// The parameters of a sharded model as whole, dense tensors, one after the other.
#include <functional>
#include <set>
#include <string>

#include "peft/method.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/block.h"

namespace tessera::checkpoint {

using VisitTensor = std::function<void(const std::string& name, const at::Tensor& tensor)>;
using ParameterChoice = std::function<bool(const std::string& name)>;

/// Collective. visit_full() of the wanted parameters, a packed matrix as the dense one in float32, [out, in], unpacked
/// and left on the device. Memory: one unit as it is stored, and one matrix.
void visit_dense(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const VisitTensor& visit,
                 const ParameterChoice& wanted, at::Device device = at::kCPU);

/// Collective. Copies of the parameters of these names, whole.
peft::Values gather_values(fsdp::FullyShardedDataParallel& model, const std::set<std::string>& names);

}  // namespace tessera::checkpoint
