#pragma once
// Which parts of a range of addresses have pages behind them. Pure arithmetic: no memory.
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::tensor {

/// Chunks of equal size, cold at first. A block that is used warms the chunks that it touches.
class WarmChunks {
 public:
  explicit WarmChunks(std::int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void use(std::int64_t offset, std::int64_t size);
  /// Of the warm chunks.
  std::int64_t bytes() const { return count_ * chunk_bytes_; }
  /// Makes chunks cold that lie wholly in this free block, until that many bytes are or none is left; tells their runs.
  void cool(std::int64_t offset, std::int64_t size, std::int64_t bytes,
            const std::function<void(std::int64_t offset, std::int64_t size)>& give_back);

 private:
  std::int64_t chunk_bytes_, count_ = 0;
  std::vector<bool> warm_;
};

}  // namespace tessera::tensor
