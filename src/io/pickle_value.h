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
  kTensor
};

enum class PickleGlobal {
  kOrderedDict,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kSize,
  kStorageType,
  kUntypedStorage,
  kDtype
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::int64_t integer = 0;                          // kInteger, kBool; kStorage: its size in elements
  double real = 0;                                   // kReal
  std::string text;                                  // kString; kStorage: its key
  std::vector<ValueId> items;                        // kTuple, kList; kDict: key, value, key, value ...
  PickleGlobal global = PickleGlobal::kOrderedDict;  // kGlobal
  at::ScalarType dtype = at::kByte;                  // kGlobal, kStorage
  std::uint32_t tensor = 0;                          // kTensor: index into PickleArena::tensors
};

struct PickleArena {
  std::deque<PickleValue> values;
  std::deque<PickledTensor> tensors;
  std::string file;

  ValueId add(PickleValue value);
  const PickleValue& at(ValueId id) const { return values[id]; }
  /// Throws the DataError that begins with the file's name.
  [[noreturn]] void fail(const std::string& what) const;
};

/// "torch._utils _rebuild_tensor_v2" -> the global; fails for everything that is not on the list.
PickleValue allowed_global(const PickleArena& arena, std::string_view module, std::string_view name);

/// What a listed callable makes of a tuple of arguments, without calling anything.
ValueId reduce(PickleArena& arena, ValueId callable, ValueId arguments);

/// ('storage', type, key, device, numel).
ValueId persistent_storage(PickleArena& arena, ValueId id);

}  // namespace tessera::io
