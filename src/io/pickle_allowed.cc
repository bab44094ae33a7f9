// The list of names that a pickle may use, and what they stand for.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/pickle_value.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

using Named = std::pair<std::string_view, at::ScalarType>;

constexpr std::array<Named, 12> kStorageTypes{{{"FloatStorage", at::kFloat},
                                               {"DoubleStorage", at::kDouble},
                                               {"HalfStorage", at::kHalf},
                                               {"BFloat16Storage", at::kBFloat16},
                                               {"LongStorage", at::kLong},
                                               {"IntStorage", at::kInt},
                                               {"ShortStorage", at::kShort},
                                               {"CharStorage", at::kChar},
                                               {"ByteStorage", at::kByte},
                                               {"BoolStorage", at::kBool},
                                               {"ComplexFloatStorage", at::kComplexFloat},
                                               {"ComplexDoubleStorage", at::kComplexDouble}}};

constexpr std::array<Named, 18> kTorchDtypes{{{"float32", at::kFloat},
                                              {"float64", at::kDouble},
                                              {"float16", at::kHalf},
                                              {"bfloat16", at::kBFloat16},
                                              {"int64", at::kLong},
                                              {"int32", at::kInt},
                                              {"int16", at::kShort},
                                              {"int8", at::kChar},
                                              {"uint8", at::kByte},
                                              {"bool", at::kBool},
                                              {"complex64", at::kComplexFloat},
                                              {"complex128", at::kComplexDouble},
                                              {"uint16", at::kUInt16},
                                              {"uint32", at::kUInt32},
                                              {"uint64", at::kUInt64},
                                              {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                              {"float8_e5m2", at::kFloat8_e5m2},
                                              {"float8_e8m0fnu", at::kFloat8_e8m0fnu}}};

// Records of torch's distributed checkpoints (torch/distributed/checkpoint/metadata.py and filesystem.py) and of the
// sharded tensors in FSDP1's LOCAL files (torch/distributed/_shard), torch 2.0 to 2.13.
constexpr std::string_view kShardedTensor = "torch.distributed._shard.sharded_tensor.api.ShardedTensor";
constexpr std::array<std::string_view, 17> kPlainClasses{
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch._utils._rebuild_wrapper_subclass",
    kShardedTensor,
    "torch.distributed._shard.metadata.ShardMetadata",
    "torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.shard.Shard",
    "torch.distributed._shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
    "torch.distributed._shard.sharding_spec.api.EnumerableShardingSpec",
    "torch.distributed.remote_device._remote_device"};
constexpr std::array<std::string_view, 7> kPlainCalls{
    "torch.serialization._get_layout",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.device",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "pathlib.Path"};

std::optional<PickleValue> distributed_global(std::string_view module, std::string_view name) {
  const std::string full = fmt::format("{}.{}", module, name);
  PickleValue out;
  out.kind = PickleKind::kGlobal;
  out.text = full;
  const auto listed = [&](const auto& names) { return std::find(names.begin(), names.end(), full) != names.end(); };
  if (listed(kPlainClasses)) {
    out.global = PickleGlobal::kPlainClass;
  } else if (listed(kPlainCalls)) {
    out.global = PickleGlobal::kPlainCall;
  } else if (full == "__builtin__.getattr" || full == "builtins.getattr") {
    out.global = PickleGlobal::kGetAttribute;
  } else {
    return std::nullopt;
  }
  return out;
}

/// getattr(ShardedTensor, "ProcessGroupState") is a class for a record, and the only attribute that is asked for.
ValueId attribute_class(PickleArena& arena, const PickleValue& arguments) {
  if (arguments.items.size() != 2 || arena.at(arguments.items[0]).text != kShardedTensor ||
      arena.at(arguments.items[0]).kind != PickleKind::kGlobal ||
      arena.at(arguments.items[1]).text != "ProcessGroupState")
    arena.fail("the pickle asks for an attribute that tensors do not need; the file was refused and nothing was run");
  PickleValue out = arena.at(arguments.items[0]);
  out.text += ".ProcessGroupState";
  return arena.add(std::move(out));
}

PickleValue global(PickleGlobal what, at::ScalarType dtype = at::kByte) {
  PickleValue out;
  out.kind = PickleKind::kGlobal;
  out.global = what;
  out.dtype = dtype;
  return out;
}

const PickleValue& argument(const PickleArena& arena, const PickleValue& arguments, std::size_t i, PickleKind kind,
                            const char* what) {
  if (i >= arguments.items.size() || arena.at(arguments.items[i]).kind != kind)
    arena.fail(fmt::format("a tensor is described wrongly: argument {} should be {}", i, what));
  return arena.at(arguments.items[i]);
}

std::vector<std::int64_t> integers(const PickleArena& arena, const PickleValue& tuple) {
  constexpr std::size_t kMaxDims = 64;
  if (tuple.items.size() > kMaxDims)
    arena.fail(fmt::format("a tensor is described wrongly: {} dimensions; at most {} are allowed", tuple.items.size(),
                           kMaxDims));
  std::vector<std::int64_t> out;
  for (auto id : tuple.items) {
    if (arena.at(id).kind != PickleKind::kInteger)
      arena.fail("a tensor is described wrongly: sizes and strides must be integers");
    out.push_back(arena.at(id).integer);
  }
  return out;
}

// _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks, metadata=None)
// _rebuild_tensor_v3(storage, storage_offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None)
ValueId rebuild_tensor(PickleArena& arena, const PickleValue& arguments, bool typed_by_argument) {
  const auto& storage = argument(arena, arguments, 0, PickleKind::kStorage, "a storage");
  PickledTensor tensor;
  tensor.key = storage.text;
  tensor.dtype = storage.dtype;
  tensor.storage_bytes = static_cast<std::uint64_t>(storage.integer) * c10::elementSize(storage.dtype);
  tensor.offset = argument(arena, arguments, 1, PickleKind::kInteger, "the storage offset").integer;
  tensor.shape = integers(arena, argument(arena, arguments, 2, PickleKind::kTuple, "the sizes"));
  tensor.strides = integers(arena, argument(arena, arguments, 3, PickleKind::kTuple, "the strides"));
  if (typed_by_argument) {
    const auto& dtype = argument(arena, arguments, 6, PickleKind::kGlobal, "a dtype");
    if (dtype.global != PickleGlobal::kDtype) arena.fail("a tensor is described wrongly: argument 6 should be a dtype");
    tensor.dtype = dtype.dtype;
  }
  arena.tensors.push_back(std::move(tensor));
  PickleValue out;
  out.kind = PickleKind::kTensor;
  out.tensor = static_cast<std::uint32_t>(arena.tensors.size() - 1);
  return arena.add(std::move(out));
}

// OrderedDict() or OrderedDict([[key, value], ...])
ValueId ordered_dict(PickleArena& arena, const PickleValue& arguments) {
  PickleValue out;
  out.kind = PickleKind::kDict;
  if (!arguments.items.empty())
    for (auto id : argument(arena, arguments, 0, PickleKind::kList, "a list of pairs").items) {
      const auto& pair = arena.at(id);
      if (pair.items.size() != 2 || (pair.kind != PickleKind::kTuple && pair.kind != PickleKind::kList))
        arena.fail("an OrderedDict is described wrongly: expected pairs");
      arena.spend(1);
      out.items.insert(out.items.end(), pair.items.begin(), pair.items.end());
    }
  return arena.add(std::move(out));
}

}  // namespace

void PickleArena::spend(std::size_t values) {
  cost += values;
  if (cost > allowed) fail(fmt::format("its pickle makes more than {} values", allowed));
}

ValueId PickleArena::add(PickleValue value) {
  spend(1);
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

void PickleArena::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", file, what), file);
}

std::string_view torch_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, found] : kTorchDtypes)
    if (found == dtype) return name;
  throw CheckpointError(fmt::format("tensors of dtype {} cannot be written as torch files", c10::toString(dtype)));
}

std::string_view torch_storage_name(at::ScalarType dtype) {
  for (const auto& [name, found] : kStorageTypes)
    if (found == dtype) return name;
  return {};
}

PickleValue allowed_global(const PickleArena& arena, std::string_view module, std::string_view name) {
  if (module == "collections" && name == "OrderedDict") return global(PickleGlobal::kOrderedDict);
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") return global(PickleGlobal::kRebuildTensorV2);
  if (module == "torch._utils" && name == "_rebuild_tensor_v3") return global(PickleGlobal::kRebuildTensorV3);
  if (module == "torch._utils" && name == "_rebuild_parameter") return global(PickleGlobal::kRebuildParameter);
  if (module == "torch._tensor" && name == "_rebuild_from_type_v2") return global(PickleGlobal::kTypedTensor);
  if ((module == "torch" && name == "Tensor") || (module == "torch.nn.parameter" && name == "Parameter"))
    return global(PickleGlobal::kTensorClass);
  if (module == "torch" && name == "Size") return global(PickleGlobal::kSize);
  if ((module == "torch.storage" || module == "torch") && name == "UntypedStorage")
    return global(PickleGlobal::kUntypedStorage);
  if (module == "torch") {
    for (const auto& [n, dtype] : kStorageTypes)
      if (n == name) return global(PickleGlobal::kStorageType, dtype);
    for (const auto& [n, dtype] : kTorchDtypes)
      if (n == name) return global(PickleGlobal::kDtype, dtype);
  }
  if (arena.names == PickleNames::kDistributed)
    if (auto found = distributed_global(module, name)) return *found;
  arena.fail(fmt::format(
      "the pickle asks for \"{}.{}\", which is not needed for tensors and could run code; the file was refused and "
      "nothing was run. If you trust it, load it in Python and save its tensors as safetensors",
      module.substr(0, 200), name.substr(0, 200)));
}

namespace {

/// (function, type, arguments, state). A plain tensor with attributes of its own (FSDP1 leaves some) is what the
/// function makes of the arguments; of a sharded one the state holds everything.
ValueId typed_tensor(PickleArena& arena, const PickleValue& arguments) {
  const auto fail = [&] { arena.fail("a tensor of a type of its own is described wrongly"); };
  if (arguments.items.size() != 4) fail();
  const auto& function = arena.at(arguments.items[0]);
  const auto& type = arena.at(arguments.items[1]);
  if (function.kind != PickleKind::kGlobal || type.kind != PickleKind::kGlobal) fail();
  if (type.global == PickleGlobal::kTensorClass) {
    if (function.global != PickleGlobal::kRebuildTensorV2 && function.global != PickleGlobal::kRebuildTensorV3) fail();
    return reduce(arena, arguments.items[0], arguments.items[2]);
  }
  if (type.text != kShardedTensor) fail();
  PickleValue out;
  out.kind = PickleKind::kObject;
  out.text = type.text;
  out.items = {arguments.items[3]};
  return arena.add(std::move(out));
}

}  // namespace

ValueId reduce(PickleArena& arena, ValueId callable, ValueId arguments_id) {
  const auto& what = arena.at(callable);
  const auto& arguments = arena.at(arguments_id);
  if (what.kind != PickleKind::kGlobal || arguments.kind != PickleKind::kTuple)
    arena.fail("the pickle calls something that is not a listed name; the file was refused and nothing was run");
  switch (what.global) {
    case PickleGlobal::kOrderedDict:
      return ordered_dict(arena, arguments);
    case PickleGlobal::kRebuildTensorV2:
      return rebuild_tensor(arena, arguments, false);
    case PickleGlobal::kRebuildTensorV3:
      return rebuild_tensor(arena, arguments, true);
    case PickleGlobal::kRebuildParameter:
      argument(arena, arguments, 0, PickleKind::kTensor, "a tensor");
      return arguments.items[0];
    case PickleGlobal::kSize:
      argument(arena, arguments, 0, PickleKind::kTuple, "sizes");
      return arguments.items[0];
    case PickleGlobal::kTypedTensor:
      return typed_tensor(arena, arguments);
    case PickleGlobal::kGetAttribute:
      return attribute_class(arena, arguments);
    case PickleGlobal::kPlainCall:
      if (arguments.items.empty()) arena.fail("the pickle calls " + what.text + " without an argument");
      return arguments.items[0];
    default:
      arena.fail("the pickle calls a type that tensors never call; the file was refused and nothing was run");
  }
}

ValueId persistent_storage(PickleArena& arena, ValueId id) {
  const auto& tuple = arena.at(id);
  const auto wrong = [&]() {
    arena.fail("a storage is described wrongly: expected ('storage', type, key, device, size)");
  };
  if (tuple.kind != PickleKind::kTuple || tuple.items.size() != 5) wrong();
  const auto& tag = arena.at(tuple.items[0]);
  const auto& type = arena.at(tuple.items[1]);
  const auto& key = arena.at(tuple.items[2]);
  const auto& size = arena.at(tuple.items[4]);
  const bool typed = type.kind == PickleKind::kGlobal &&
                     (type.global == PickleGlobal::kStorageType || type.global == PickleGlobal::kUntypedStorage);
  if (tag.kind != PickleKind::kString || tag.text != "storage" || !typed || key.kind != PickleKind::kString ||
      size.kind != PickleKind::kInteger || size.integer < 0 || size.integer > (std::int64_t{1} << 56))
    wrong();
  arena.spend(key.text.size() / sizeof(PickleValue));
  PickleValue out;
  out.kind = PickleKind::kStorage;
  out.text = key.text;
  out.integer = size.integer;
  out.dtype = type.dtype;
  return arena.add(std::move(out));
}

}  // namespace tessera::io
