#pragma once
// Initial values: each rank reads only what lies in its slices.
#include "fsdp/flat_layout.h"
#include "fsdp/unit.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// The parameter's name in the source, or "" when the source does not have it.
std::string name_in_source(const FsdpOptions& options, const std::string& parameter);

/// DataError unless the source has the parameter with this shape.
void check_source_shape(const FsdpOptions& options, const ParameterSpec& spec);

/// Fills this rank's slices from the source, or from the values that the module holds.
void load_slices(const Unit& unit, int rank, const FsdpOptions& options);

}  // namespace tessera::fsdp
