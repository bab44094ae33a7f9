#pragma once
// Reads the pickles that torch.save writes for state dicts. A pickle is a program for a stack machine that can call any
// function; this reader knows containers, numbers, strings and the few names below, and nothing else: it runs no code.
//   collections.OrderedDict, torch._utils._rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter, torch.Size,
//   torch.<X>Storage, torch.storage.UntypedStorage, torch.<dtype>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

struct PickledTensor {
  std::string key;                  // of the storage: the entry data/<key> of the archive
  std::uint64_t storage_bytes = 0;  // that the pickle claims
  at::ScalarType dtype = at::kFloat;
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape, strides;
};

struct PickledEntry {
  std::string name;
  PickledTensor tensor;
};

/// The tensors at the top level of a pickled dict, in its order; other values there are skipped. DataError names `file`
/// and what is wrong: a global that is not on the list (its name, and that nothing was run), damage, another root than
/// a dict, the same name twice, no tensors.
std::vector<PickledEntry> read_state_dict_pickle(std::string_view bytes, const std::string& file);

/// The same at any depth of nested dicts, names joined with '/'; no tensors at all are no error. Of a ShardedTensor
/// (FSDP1's LOCAL files) the parts that the file holds, each under its name and "@" and its first element.
std::vector<PickledEntry> read_nested_pickle(std::string_view bytes, const std::string& file);

/// Of a pickle that is one tensor.
PickledTensor read_tensor_pickle(std::string_view bytes, const std::string& file);

}  // namespace tessera::io
