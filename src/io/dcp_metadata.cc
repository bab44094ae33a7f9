#include "io/dcp_metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "io/pickle_value.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::size_t kMaxDcpDims = 64, kMaxFileName = 255;
// A pickle can use what it remembers again and again, so what is made of it has limits of its own.
constexpr std::size_t kMaxAttributes = 64, kMaxChunks = 10'000'000, kMaxNameBytes = std::size_t{1} << 30,
                      kMaxComparisons = 100'000'000, kComparisonsOfAPart = 512;

/// Typed access to the values of the pickle; every mistake is a DataError.
class MetadataReader {
 public:
  MetadataReader(const PickleResult& pickle) : arena_(pickle.arena) { read(pickle.root); }
  DcpMetadata take() { return std::move(out_); }

 private:
  using Places = std::map<std::pair<std::string, std::vector<std::int64_t>>, DcpChunk>;

  const PickleValue& expect(ValueId id, PickleKind kind, const char* what) const {
    if (arena_.at(id).kind != kind) arena_.fail(fmt::format("expected {}, found something else", what));
    return arena_.at(id);
  }
  /// The attribute of an object of this class.
  const PickleValue* find(ValueId object, std::string_view type, std::string_view attribute) const {
    const auto& value = expect(object, PickleKind::kObject, std::string(type).c_str());
    if (!value.text.ends_with(type) || value.items.size() != 1)
      arena_.fail(fmt::format("expected an object of {}, found one of {}", type, value.text));
    const auto& state = arena_.at(value.items[0]);
    if (state.kind != PickleKind::kDict) arena_.fail(fmt::format("an object of {} has no attributes", type));
    if (state.items.size() > 2 * kMaxAttributes)
      arena_.fail(fmt::format("an object of {} has too many attributes", type));
    for (std::size_t i = 0; i + 1 < state.items.size(); i += 2) {
      const auto& key = arena_.at(state.items[i]);
      if (key.kind == PickleKind::kString && key.text == attribute) return &arena_.at(state.items[i + 1]);
    }
    return nullptr;
  }
  const PickleValue& attribute(ValueId object, std::string_view type, std::string_view name, PickleKind kind) const {
    const auto* found = find(object, type, name);
    if (!found || found->kind != kind) arena_.fail(fmt::format("an object of {} has no proper '{}'", type, name));
    return *found;
  }
  std::vector<std::int64_t> sizes(const PickleValue& tuple) const {
    if (tuple.items.size() > kMaxDcpDims) arena_.fail("more dimensions than tensors can have");
    std::vector<std::int64_t> out;
    for (const auto id : tuple.items) {
      const auto n = expect(id, PickleKind::kInteger, "a size").integer;
      if (n < 0) arena_.fail("a negative size or offset");
      out.push_back(n);
    }
    return out;
  }

  /// A copy is made of it.
  const std::string& name(const std::string& text) {
    name_bytes_ += text.size();
    if (name_bytes_ > kMaxNameBytes) arena_.fail("its names are too long");
    return text;
  }

  void read(ValueId root) {
    read_places(attribute(root, "Metadata", "storage_data", PickleKind::kDict));
    if (const auto* planner = find(root, "Metadata", "planner_data"); planner && planner->kind == PickleKind::kDict)
      read_paths(*planner);
    const auto& entries = attribute(root, "Metadata", "state_dict_metadata", PickleKind::kDict);
    for (std::size_t i = 0; i + 1 < entries.items.size(); i += 2) {
      const auto& fqn = name(expect(entries.items[i], PickleKind::kString, "a name").text);
      const auto& value = expect(entries.items[i + 1], PickleKind::kObject, "a description of a tensor or an object");
      if (value.text.ends_with("BytesStorageMetadata")) {
        out_.objects.push_back({fqn, path_of(fqn), place_of(fqn, {})});
      } else {
        read_tensor(fqn, entries.items[i + 1]);
      }
    }
  }

  void read_places(const PickleValue& storage) {
    for (std::size_t i = 0; i + 1 < storage.items.size(); i += 2) {
      const auto index = storage.items[i], info = storage.items[i + 1];
      const auto& fqn = name(attribute(index, "MetadataIndex", "fqn", PickleKind::kString).text);
      const auto* offset = find(index, "MetadataIndex", "offset");
      DcpChunk place;
      if (offset && offset->kind == PickleKind::kTuple) place.offsets = sizes(*offset);
      place.file = attribute(info, "_StorageInfo", "relative_path", PickleKind::kString).text;
      const auto at = attribute(info, "_StorageInfo", "offset", PickleKind::kInteger).integer,
                 length = attribute(info, "_StorageInfo", "length", PickleKind::kInteger).integer;
      const std::filesystem::path path(place.file);
      if (at < 0 || length < 0 || path.empty() || path.filename() != path || place.file.size() > kMaxFileName)
        arena_.fail(fmt::format("'{}' should be {} bytes at byte {} of '{}'", fqn, length, at, place.file));
      place.offset = static_cast<std::uint64_t>(at);
      place.length = static_cast<std::uint64_t>(length);
      const auto offsets = place.offsets;
      if (!places_.emplace(std::pair(fqn, offsets), std::move(place)).second)
        arena_.fail(fmt::format("a part of '{}' at [{}] lies in two places", fqn, fmt::join(offsets, ", ")));
    }
  }

  void read_paths(const PickleValue& planner) {
    for (std::size_t i = 0; i + 1 < planner.items.size(); i += 2) {
      const auto& key = arena_.at(planner.items[i]);
      const auto& value = arena_.at(planner.items[i + 1]);
      if (key.kind != PickleKind::kString || value.kind != PickleKind::kTuple) continue;
      std::vector<std::string> path;
      for (const auto id : value.items) {
        const auto& part = arena_.at(id);
        path.push_back(part.kind == PickleKind::kInteger ? std::to_string(part.integer) : name(part.text));
      }
      paths_[key.text] = std::move(path);
    }
  }

  std::vector<std::string> path_of(const std::string& name) const {
    const auto it = paths_.find(name);
    return it == paths_.end() ? std::vector{name} : it->second;
  }

  DcpChunk place_of(const std::string& name, const std::vector<std::int64_t>& offsets) const {
    const auto it = places_.find({name, offsets});
    if (it == places_.end()) arena_.fail(fmt::format("nothing says where a part of '{}' lies", name));
    return it->second;
  }

  void read_tensor(const std::string& name, ValueId id) {
    constexpr std::string_view kType = "TensorStorageMetadata";
    DcpTensor tensor{name, path_of(name), at::kFloat, {}, {}};
    tensor.shape = sizes(attribute(id, kType, "size", PickleKind::kTuple));
    const auto& properties = attribute(id, kType, "properties", PickleKind::kObject);
    if (properties.items.size() != 1) arena_.fail(fmt::format("'{}' has no dtype", name));
    const auto& state = arena_.at(properties.items[0]);  // (dtype, layout, requires_grad, memory format, pinned)
    if (state.kind != PickleKind::kTuple || state.items.empty()) arena_.fail(fmt::format("'{}' has no dtype", name));
    const auto& dtype = expect(state.items[0], PickleKind::kGlobal, "a dtype");
    if (dtype.global != PickleGlobal::kDtype) arena_.fail(fmt::format("'{}' has no dtype", name));
    tensor.dtype = dtype.dtype;
    const auto& chunks = attribute(id, kType, "chunks", PickleKind::kList).items;
    chunks_ += chunks.size();
    if (chunks_ > kMaxChunks) arena_.fail(fmt::format("its tensors have more than {} parts", kMaxChunks));
    for (const auto chunk : chunks) {
      const auto offsets = sizes(attribute(chunk, "ChunkStorageMetadata", "offsets", PickleKind::kTuple));
      DcpChunk box = place_of(name, offsets);
      box.sizes = sizes(attribute(chunk, "ChunkStorageMetadata", "sizes", PickleKind::kTuple));
      bool inside = box.sizes.size() == tensor.shape.size() && offsets.size() == tensor.shape.size();
      for (std::size_t d = 0; inside && d < tensor.shape.size(); ++d)
        inside = box.sizes[d] <= tensor.shape[d] && offsets[d] <= tensor.shape[d] - box.sizes[d];
      if (!inside) arena_.fail(fmt::format("a part of '{}' lies outside of the tensor", name));
      tensor.chunks.push_back(std::move(box));
    }
    check_apart(tensor);
    out_.tensors.push_back(std::move(tensor));
  }

  /// Elements that are there twice would stand for others that are missing.
  void check_apart(const DcpTensor& tensor) {
    std::vector<const DcpChunk*> boxes;
    for (const auto& box : tensor.chunks)
      if (std::find(box.sizes.begin(), box.sizes.end(), 0) == box.sizes.end()) boxes.push_back(&box);
    std::sort(boxes.begin(), boxes.end(), [](const auto* a, const auto* b) { return a->offsets < b->offsets; });
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = i + 1; j < boxes.size() && meet(*boxes[i], *boxes[j], 1); ++j) {
        if (++comparisons_ > kMaxComparisons + kComparisonsOfAPart * chunks_)
          arena_.fail(fmt::format("'{}' has too many parts", tensor.name));
        if (meet(*boxes[i], *boxes[j], tensor.shape.size()))
          arena_.fail(fmt::format("the parts of '{}' at [{}] and [{}] overlap; copy the folder again, or save it anew",
                                  tensor.name, fmt::join(boxes[i]->offsets, ", "), fmt::join(boxes[j]->offsets, ", ")));
      }
    }
  }
  /// In the first `dims` dimensions.
  static bool meet(const DcpChunk& a, const DcpChunk& b, std::size_t dims) {
    for (std::size_t d = 0; d < std::min(dims, a.offsets.size()); ++d)
      if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) return false;
    return true;
  }

  const PickleArena& arena_;
  std::size_t name_bytes_ = 0, chunks_ = 0, comparisons_ = 0;
  Places places_;
  std::map<std::string, std::vector<std::string>> paths_;
  DcpMetadata out_;
};

}  // namespace

DcpMetadata parse_dcp_metadata(std::string_view pickle, const std::string& file) {
  const PickleResult result = run_pickle(pickle, file, PickleNames::kDistributed);
  return MetadataReader(result).take();
}

}  // namespace tessera::io
