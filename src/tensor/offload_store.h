#pragma once
// Where tensors that live for a whole run lie while nobody computes with them: in files on a disk, mapped into memory
// (here). Whoever owns such tensors says when they are needed.
//
//   store.fetch(state); ... read and write it ...; store.evict(state);
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::tensor {

struct SplitFloats;

class OffloadStore {
 public:
  virtual ~OffloadStore() = default;
  /// 1-D, contiguous, zeros. Throws Error when there is no room for it.
  virtual at::Tensor allocate(std::int64_t numel, at::ScalarType dtype) = 0;
  /// It is going to be read or written: a hint to start bringing it, in pieces or whole.
  virtual void fetch(const at::Tensor& t) const = 0;
  /// Nobody needs it for a while: the memory behind it may serve others. Values stay, and reading it brings them back.
  /// Tensors that lie elsewhere are left alone.
  virtual void evict(const at::Tensor& t) const = 0;
  /// The caller reads and writes parameters where halves_of() says: these may lose their own memory from now on.
  virtual void accept_halves() {}
  /// Where a parameter without memory has its values; nullptr: it has memory. Until the parameter is written to next.
  virtual const SplitFloats* halves_of(const at::Tensor& /*parameter*/) const { return nullptr; }
  /// Of what was allocated and is still held.
  virtual std::int64_t held_bytes() const = 0;
};

/// Memory-mapped files in a folder. They have no names, so nothing stays behind, however the process ends; their blocks
/// are reserved at once, so that a full disk is an Error here and not a crash later.
class DiskStore final : public OffloadStore {
 public:
  /// Error when the folder is missing, not writable, or in memory itself (tmpfs).
  explicit DiskStore(const std::string& folder);
  ~DiskStore() override;

  at::Tensor allocate(std::int64_t numel, at::ScalarType dtype) override;
  void fetch(const at::Tensor& t) const override;
  void evict(const at::Tensor& t) const override;
  std::int64_t held_bytes() const override;

  /// A file that several processes map: one makes it, all map it, then it loses its name.
  std::string make_file(std::int64_t size_bytes);
  std::shared_ptr<std::byte> map_file(const std::string& path, std::int64_t size_bytes);
  static void forget_file(const std::string& path) noexcept;

 private:
  struct Ranges;
  std::shared_ptr<std::byte> map(int descriptor, std::int64_t size_bytes);
  void advise(const at::Tensor& t, int advice) const;
  std::string folder_;
  std::shared_ptr<Ranges> ranges_;  // of the mappings that exist
};

}  // namespace tessera::tensor
