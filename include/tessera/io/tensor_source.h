#pragma once
// Where parameters come from: tensors by name, of which any element range can be read without reading the rest.
// Implementations: safetensors (one file or a sharded index), pytorch_model.bin, memory.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::io {

struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::string file;               // where it lies, for messages
  std::int64_t packed_bytes = 0;  // of one that is stored packed, and that read() unpacks to `dtype`; 0: it is not
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (auto s : shape) n *= s;
    return n;
  }
  /// As it is stored: what read_bytes() reads.
  std::int64_t nbytes() const {
    return packed_bytes > 0 ? packed_bytes : numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
  }
};

/// A read-only view of a tensor's bytes in a file mapping (copy-on-write, so a stray write cannot reach the file).
struct MappedTensor {
  std::byte* data = nullptr;  // aligned to the element size, native endianness
  std::shared_ptr<const void> keep_alive;
};

/// Who else on this host reads the same bytes: what one process reads alone goes past the page cache.
enum class Readers { kOne, kSeveral };

/// Elements [begin, begin + out.numel()) of a tensor, as read() takes them.
struct SliceRead {
  std::string name;
  std::int64_t begin = 0;
  at::Tensor out;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Sorted by name.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  virtual const TensorInfo* find(const std::string& name) const = 0;
  /// Elements [begin, begin + out.numel()) of the row-major flattened tensor, converted to out's dtype. out: 1-D,
  /// contiguous. DataError names the tensor and the file when the name, the range or the file is wrong.
  virtual void read(const std::string& name, std::int64_t begin, at::Tensor out) const = 0;
  /// Bytes [begin, begin + out.numel()) of the tensor as it is stored, whatever they mean. out: 1-D, contiguous, uint8.
  /// Both ends are multiples of the stored dtype's size. DataError like read().
  virtual void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const;
  /// All of them; a source over files reads in the order in which they lie on the disk, the next ones on their way.
  virtual void read_all(const std::vector<SliceRead>& slices, Readers) const {
    for (const auto& slice : slices) read(slice.name, slice.begin, slice.out);
  }
  /// The tensor in place, if its storage allows (contiguous, aligned, uncompressed).
  virtual std::optional<MappedTensor> map(const std::string& name) const = 0;
  /// Its bytes as they are stored, in place likewise.
  virtual std::optional<MappedTensor> map_bytes(const std::string& name) const { return map(name); }
};

/// The weights of a Hugging Face folder: model.safetensors, model.safetensors.index.json, pytorch_model.bin or
/// pytorch_model.bin.index.json, in this order; also a path of one .safetensors or .bin file. DataError lists what was
/// looked for.
std::shared_ptr<TensorSource> open_weights(const std::string& folder_or_file);

/// One safetensors file (any content: weights, adapters, reference tensors). Checks header size (<= 100 MB), offsets
/// (contiguous, inside the file), dtypes and shapes; errors name the tensor.
std::shared_ptr<TensorSource> open_safetensors(const std::string& file);

/// Tensors that are already in memory (other devices are copied to the CPU); names must differ. map() shares their
/// memory.
std::shared_ptr<TensorSource> memory_source(std::vector<std::pair<std::string, at::Tensor>> tensors);

/// The tensors of all sources; of equal names the first source's.
std::shared_ptr<TensorSource> joined_source(std::vector<std::shared_ptr<const TensorSource>> sources);

/// The whole tensor, in its stored dtype.
at::Tensor read_tensor(const TensorSource& source, const std::string& name);

/// What a writer made: size and CRC-32C of the whole file.
struct WrittenFile {
  std::string path;
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// Writes a safetensors file crash-atomically (temporary name, flush, fsync, rename). Tensors in the given order of
/// names as safetensors does it (by dtype size descending, then name); metadata {"format": "pt"} unless given.
/// has_read: called with each tensor when it is in the file.
WrittenFile write_safetensors(const std::string& file, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata = {{"format", "pt"}},
                              const std::function<void(const at::Tensor&)>& has_read = nullptr);

/// The same, streamed: the header is written from the infos, then `write` is called once for each tensor, in any order;
/// commit() checks that all came and renames. Without commit() nothing is left behind.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& file, std::vector<TensorInfo> infos,
                    const std::vector<std::pair<std::string, std::string>>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  void write(const std::string& name, const at::Tensor& tensor);  // contiguous, as announced
  WrittenFile commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::io
