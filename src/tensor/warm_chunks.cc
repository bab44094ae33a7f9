#include "tensor/warm_chunks.h"

#include <algorithm>

namespace tessera::tensor {

void WarmChunks::use(std::int64_t offset, std::int64_t size) {
  const auto first = offset / chunk_bytes_, end = (offset + size - 1) / chunk_bytes_ + 1;
  if (static_cast<std::int64_t>(warm_.size()) < end) warm_.resize(static_cast<std::size_t>(end));
  for (auto c = first; c < end; ++c) {
    auto chunk = warm_[static_cast<std::size_t>(c)];
    count_ += !chunk;
    chunk = true;
  }
}

void WarmChunks::cool(std::int64_t offset, std::int64_t size, std::int64_t bytes,
                      const std::function<void(std::int64_t, std::int64_t)>& give_back) {
  const auto end = std::min((offset + size) / chunk_bytes_, static_cast<std::int64_t>(warm_.size()));
  std::int64_t run = 0;
  const auto tell = [&](std::int64_t run_end) {
    if (run > 0) give_back((run_end - run) * chunk_bytes_, run * chunk_bytes_);
    run = 0;
  };
  auto c = (offset + chunk_bytes_ - 1) / chunk_bytes_;
  for (; c < end && bytes > 0; ++c) {
    auto chunk = warm_[static_cast<std::size_t>(c)];
    if (!chunk) {
      tell(c);
      continue;
    }
    chunk = false;
    --count_;
    ++run;
    bytes -= chunk_bytes_;
  }
  tell(c);
}

}  // namespace tessera::tensor
