#pragma once
// Between layers, whose inputs have any leading sizes and whose bias may be undefined, and autograd nodes, which take
// rows and say by std::optional what may be left out.
#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::nn {

/// Calls f(x as [N, in], contiguous) and gives its result, [N, out], x's leading sizes.
template <class F>
at::Tensor over_rows(const at::Tensor& x, const F& f) {
  if (x.dim() == 2) return f(x.contiguous());
  auto sizes = x.sizes().vec();
  const auto y = f(x.reshape({-1, sizes.back()}).contiguous());
  sizes.back() = y.size(1);
  return y.view(sizes);
}

/// Nothing for an undefined tensor.
inline std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

}  // namespace tessera::nn
