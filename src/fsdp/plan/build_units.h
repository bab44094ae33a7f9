#pragma once
#include "fsdp/plan/unit_plan.h"
#include "fsdp/runtime/runtime.h"

namespace tessera::fsdp {

/// Collective. Lays out, allocates, fills and activates every unit of the plan. The modules' own memory is released
/// unit by unit.
void build_units(Runtime& runtime, const UnitPlan& plan);

}  // namespace tessera::fsdp
