#pragma once
// Memory that is fetched into the second cache before it is read: what a product reads next, while it multiplies.
#include <cstdint>

namespace tessera::nn::kernels {

/// `rows` times `bytes`, `stride` bytes apart.
struct MemoryRows {
  const void* at = nullptr;
  std::int64_t rows = 0, bytes = 0, stride = 0;
};

/// Fetches them some lines at a time. Not into the first cache, which is full of what is multiplied.
class Prefetch {
 public:
  Prefetch() = default;
  explicit Prefetch(const MemoryRows& memory)
      : at_(static_cast<const char*>(memory.at)),
        rows_(memory.rows),
        lines_((memory.bytes + kLine - 1) / kLine),
        stride_(memory.stride) {}

  std::int64_t lines() const { return rows_ * lines_; }
  void fetch(std::int64_t count) {
    for (; count > 0 && row_ < rows_; --count) {
      __builtin_prefetch(at_ + row_ * stride_ + line_ * kLine, 0, 2);
      if (++line_ == lines_) line_ = 0, ++row_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const char* at_ = nullptr;
  std::int64_t rows_ = 0, lines_ = 0, stride_ = 0;
  std::int64_t row_ = 0, line_ = 0;
};

}  // namespace tessera::nn::kernels
