#pragma once
// Small pieces of a device's memory that the CPU works on: one copy brings all of them, one takes them back.
#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::optim {

class HostCopies {
 public:
  /// there: 1-D and contiguous. `here` becomes its copy in fetch().
  enum class Use { kRead, kReadAndWrite };
  void add(const at::Tensor& there, at::Tensor* here, Use use);
  /// Waits for the device.
  void fetch();
  void give_back();

 private:
  struct Piece {
    at::Tensor there;
    at::Tensor* here;
    Use use;
    std::int64_t begin = 0;  // in bytes_
  };
  std::vector<Piece> pieces_;
  at::Tensor bytes_;  // of all copies
};

}  // namespace tessera::optim
