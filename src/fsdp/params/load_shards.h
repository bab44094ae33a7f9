#pragma once
// Initial values: each rank reads only what lies in its slices.
#include "fsdp/plan/flat_layout.h"
#include "fsdp/runtime/unit.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

/// The parameter's name in the source, or "" when the source does not have it.
std::string name_in_source(const FsdpOptions& options, const std::string& parameter);

/// DataError unless the source, if it has the parameter, has it with this shape; of a packed one, with as many bytes.
void check_source_shape(const FsdpOptions& options, const ParameterSpec& spec);

/// DataError where the parameter holds nothing; the source does not have it.
void check_has_value(const at::Tensor& parameter, const std::string& name, const FsdpOptions& options);

/// Fills the slices of `rank` in the shard group from the source, or from the values that the module holds: here, or on
/// rank 0 of the world with sync_module_states. Then collective over the world.
void load_slices(const Unit& unit, int rank, const FsdpOptions& options, comm::Communicator& world);

/// Each once, under its first name; those without values are left out.
std::vector<NamedBuffer> named_buffers(torch::nn::Module& root);

/// Buffers that the source has take its values. DataError for another shape.
void read_buffers(const std::vector<NamedBuffer>& buffers, const FsdpOptions& options);

/// Collective. Buffers take the values of rank 0.
void sync_buffers(torch::nn::Module& root, comm::Communicator& world);

}  // namespace tessera::fsdp
