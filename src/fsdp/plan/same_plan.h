#pragma once
#include "fsdp/plan/unit_plan.h"
#include "tessera/comm/communicator.h"

namespace tessera::fsdp {

/// Collective. ConfigError unless all ranks planned the same units and parameters (names, shapes, dtypes, what trains):
/// equal sizes under other names would be mixed up silently. Names the first difference.
void check_same_plan(const UnitPlan& plan, comm::Communicator& world);

}  // namespace tessera::fsdp
