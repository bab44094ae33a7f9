#pragma once
#include "fsdp/plan/unit_plan.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// Collective, after check_same_plan(). DataError unless the sources of all ranks have the same bytes in the middle of
/// each dense parameter (of 256 of them in a larger model): weights of another training, of which every rank reads
/// other slices, would be mixed up silently. Names the first that differs. Ranks without a source are not asked.
void check_same_source(const UnitPlan& plan, const FsdpOptions& options, comm::Communicator& world);

}  // namespace tessera::fsdp
