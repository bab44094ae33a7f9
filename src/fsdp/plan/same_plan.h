#pragma once
#include "fsdp/plan/unit_plan.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// Collective. ConfigError unless all ranks compute on devices of one type, by the same options, and planned the same
/// units and parameters (names, shapes, dtypes, what trains): equal sizes under other names would be mixed up silently,
/// other operations wait for each other. Names the first difference.
void check_same_plan(const UnitPlan& plan, const FsdpOptions& options, comm::Communicator& world);

}  // namespace tessera::fsdp
