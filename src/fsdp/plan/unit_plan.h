#pragma once
// Which module becomes a unit, and which unit owns which parameter. No memory, no communication.
#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

struct PlannedParameter {
  std::string name;   // the first under which it is registered
  at::Tensor tensor;  // the module's own
  int unit = 0;       // the lowest common ancestor of the units that register it
  std::string codec;  // of the packed matrix whose field it is; empty: it is dense
  std::int64_t block_bytes = 0;
};

struct PlannedUnit {
  std::string name;                    // fully qualified; "" is the root
  nn::HookedModule* module = nullptr;  // null: the parameters of all ignored modules, which no forward gathers
  int parent = -1;
};

struct UnitPlan {
  std::vector<PlannedUnit> units;            // pre-order: the root first, then what is ignored (if anything is)
  std::vector<PlannedParameter> parameters;  // registration order, each once
  std::unordered_set<const torch::nn::Module*> ignored;  // modules, with all that are below them
};

/// ConfigError when a policy by class names names a class that the tree lacks, the filter matches nothing, or a field
/// of a packed matrix is to train.
UnitPlan plan_units(nn::HookedModule& root, const WrapPolicy& policy, const ModuleFilter& ignored = nullptr);

}  // namespace tessera::fsdp
