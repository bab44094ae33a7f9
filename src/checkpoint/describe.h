#pragma once
// What a file or folder holds, for people and programs: models, adapters, checkpoints of this program, of Accelerate
// and of torch.distributed.checkpoint.
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::checkpoint {

enum class Checksums { kSizesOnly, kVerify };

/// {"path", "kind", "parts": [{"name", "kind", "tensors": [{"name", "dtype", "shape"}], "elements", "bytes", "dtypes",
/// "error"}], ...}; for checkpoints with a manifest also "step", "world_size", "written_by", "state" ("whole", or what
/// is wrong). What cannot be read is said in its place. DataError when there is nothing at `path`.
nlohmann::ordered_json describe(const std::string& path, Checksums checksums);

}  // namespace tessera::checkpoint
