#pragma once
// The .metadata file of a folder of torch.distributed.checkpoint: which tensors there are, and in which boxes their
// values lie in which files. A pickle, read without running it.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

/// A box of a tensor: elements offsets[d] .. offsets[d] + sizes[d] of every dimension.
struct DcpChunk {
  std::vector<std::int64_t> offsets, sizes;
  std::string file;                      // beside .metadata
  std::uint64_t offset = 0, length = 0;  // bytes of the file: an archive of torch.save with this box
};

struct DcpTensor {
  std::string name;               // "optimizer.state.lm_head.weight.exp_avg"
  std::vector<std::string> path;  // "optimizer", "state", "lm_head.weight", "exp_avg"
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::vector<DcpChunk> chunks;
};

/// A value that is no tensor (a learning rate), pickled by itself.
struct DcpObject {
  std::string name;
  std::vector<std::string> path;
  DcpChunk where;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors;  // in the order of the file
  std::vector<DcpObject> objects;
};

/// DataError names `file` and what is wrong: a global that is not listed, damage, a box outside of its tensor, boxes
/// that overlap, a box of which no file is known, file names that lead elsewhere.
DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& file);

/// What torch.distributed.checkpoint's readers take (torch 2.0 and later).
std::string write_dcp_metadata(const DcpMetadata& metadata);

}  // namespace tessera::io
