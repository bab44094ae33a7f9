#pragma once
#include "fsdp/runtime.h"
#include "fsdp/unit_plan.h"

namespace tessera::fsdp {

/// Collective. Lays out, allocates, fills and activates every unit of the plan. The modules' own memory is released
/// unit by unit.
void build_units(Runtime& runtime, const UnitPlan& plan);

}  // namespace tessera::fsdp
