#pragma once
// Values on the pickle machine's stack. They refer to each other by index into one arena: a pickle may build cycles and
// deep nests, which cost nothing here and need no recursion to free.
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "io/pickle.h"

namespace tessera::io {

using ValueId = std::uint32_t;

enum class PickleKind {
  kNone,
  kBool,
  kInteger,
  kReal,
  kString,
  kTuple,
  kList,
  kDict,
  kMark,
  kGlobal,
  kStorage,
  kTensor,
  kObject
};

enum class PickleGlobal {
  kOrderedDict,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kSize,
  kStorageType,
  kUntypedStorage,
  kDtype,
  kPlainClass,   // an object of it is a record of its attributes
  kPlainCall,    // a constructor whose argument says all: the result is its first argument
  kTensorClass,  // torch.Tensor, Parameter
  kTypedTensor,  // torch._tensor._rebuild_from_type_v2
  kGetAttribute
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::int64_t integer = 0;                          // kInteger, kBool; kStorage: its size in elements
  double real = 0;                                   // kReal
  std::string text;                                  // kString; kStorage: its key; kObject, kPlain...: the name
  std::vector<ValueId> items;                        // kTuple, kList; kDict: key, value ...; kObject: its state
  PickleGlobal global = PickleGlobal::kOrderedDict;  // kGlobal
  at::ScalarType dtype = at::kByte;                  // kGlobal, kStorage
  std::uint32_t tensor = 0;                          // kTensor: index into PickleArena::tensors
};

/// What a pickle may name: tensors, or also the records of torch's distributed checkpoints.
enum class PickleNames { kTensors, kDistributed };

struct PickleArena {
  PickleNames names = PickleNames::kTensors;
  std::deque<PickleValue> values;
  std::deque<PickledTensor> tensors;
  std::string file;
  std::size_t cost = 0, allowed = 0;  // values; those of the file's own bytes are always allowed

  ValueId add(PickleValue value);
  /// Memory for so many values; fails where all together is too much. A pickle of some kilobytes can ask for terabytes:
  /// what it remembers it can use again and again.
  void spend(std::size_t values);
  const PickleValue& at(ValueId id) const { return values[id]; }
  /// Throws the DataError that begins with the file's name.
  [[noreturn]] void fail(const std::string& what) const;
};

/// "float32"; CheckpointError for dtypes that files do not have.
std::string_view torch_dtype_name(at::ScalarType dtype);
/// "FloatStorage"; empty for dtypes without a storage class of their own.
std::string_view torch_storage_name(at::ScalarType dtype);

/// "torch._utils _rebuild_tensor_v2" -> the global; fails for everything that is not on the list.
PickleValue allowed_global(const PickleArena& arena, std::string_view module, std::string_view name);

/// Runs the program of a pickle, without calling anything; `root` is what it leaves. DataError as for
/// read_state_dict_pickle().
struct PickleResult {
  PickleArena arena;
  ValueId root = 0;
};
PickleResult run_pickle(std::string_view bytes, const std::string& file, PickleNames names);

/// What a listed callable makes of a tuple of arguments, without calling anything.
ValueId reduce(PickleArena& arena, ValueId callable, ValueId arguments);

/// ('storage', type, key, device, numel).
ValueId persistent_storage(PickleArena& arena, ValueId id);

}  // namespace tessera::io
