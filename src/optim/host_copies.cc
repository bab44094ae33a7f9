#include "optim/host_copies.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace tessera::optim {

void HostCopies::add(const at::Tensor& there, at::Tensor* here, Use use) {
  pieces_.push_back({there, here, use});
}

void HostCopies::fetch() {
  if (pieces_.empty()) return;
  // The larger elements come first, so that each lies at a multiple of its size.
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.there.itemsize() > b.there.itemsize(); });
  std::vector<at::Tensor> bytes;
  std::int64_t end = 0;
  for (auto& piece : pieces_) {
    bytes.push_back(piece.there.view(at::kByte));
    piece.begin = end;
    end += bytes.back().numel();
  }
  bytes_ = at::cat(bytes).to(at::kCPU);
  for (const auto& piece : pieces_)
    *piece.here =
        bytes_.narrow(0, piece.begin, static_cast<std::int64_t>(piece.there.nbytes())).view(piece.there.scalar_type());
}

void HostCopies::give_back() {
  if (pieces_.empty()) return;
  const auto moved = bytes_.to(pieces_.front().there.device());
  for (const auto& piece : pieces_)
    if (piece.use == Use::kReadAndWrite)
      piece.there.view(at::kByte).copy_(moved.narrow(0, piece.begin, static_cast<std::int64_t>(piece.there.nbytes())));
}

}  // namespace tessera::optim
