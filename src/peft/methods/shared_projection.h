#pragma once
// What layers that get the same input (q, k and v; gate and up) compute once: its product with a frozen matrix that
// they share, too.
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>

namespace tessera::peft {

/// x a^T, [N, R], with a gradient of x alone. x: [N, in]; a: [R, in], frozen.
at::Tensor projection(const at::Tensor& x, const at::Tensor& a);

/// Of one model; used by the thread that runs its layers.
class SharedProjection {
 public:
  /// projection(x, a), a decided by its sizes: what the last call made for the same x, if somebody keeps it still;
  /// nothing is held here. input: the layer's, of which x is the rows.
  at::Tensor operator()(const at::Tensor& input, const at::Tensor& x, const at::Tensor& a);

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  Weak input_{at::Tensor().getIntrusivePtr()}, made_{at::Tensor().getIntrusivePtr()};
  std::uint32_t version_ = 0;
};

}  // namespace tessera::peft
