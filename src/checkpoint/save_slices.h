#pragma once
// A safetensors file of whole parameters and of rank 0's buffers, written by all ranks together: each writes the
// elements it holds at their place. Nothing is gathered, and nothing copied beyond what the queue keeps of what
// training changes.
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save_queue.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::checkpoint {

/// Names that a parameter or buffer has in the file; none: it is not saved.
using NamesInFile = std::function<std::vector<std::string>(const std::string& parameter)>;

/// What a buffer holds now: 1-D, in host memory of its own.
at::Tensor values_of(const fsdp::NamedBuffer& buffer);

/// True where all ranks are on one host. (Hosts that write one file of a network file system are left alone.)
bool writes_together(const fsdp::FullyShardedDataParallel& model);

/// Collective. In the background: under `file` itself, which must lie in a folder that gets its name later; else under
/// a temporary name until all ranks have written. A failure stays in the queue of the rank that met it.
/// dtype: of floating parameters in the file; unset: their own.
void save_slices(fsdp::FullyShardedDataParallel& model, const std::string& file, const NamesInFile& names,
                 SaveQueue& queue, std::optional<at::ScalarType> dtype = {});

}  // namespace tessera::checkpoint
