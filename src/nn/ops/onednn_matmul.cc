#include "nn/ops/onednn_matmul.h"

#include <ATen/Context.h>

#include <cstdlib>

#include "base/cpu_level.h"

namespace at::native {

// Weak: its address is null where libtorch lacks it, and the linker does not mind.
[[gnu::weak]] void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);

}  // namespace at::native

namespace tessera::nn {
namespace {

// oneDNN keeps what it has made for a shape of operands, half a megabyte, and so does libtorch on each thread: 1,024 of
// them by default, which a run whose batches differ in length fills in some hundred steps. A step has about 40 shapes.
// Both read the variables at their first product; a user's own values stay.
[[maybe_unused]] const bool keeps_few_shapes = [] {
  for (const char* capacity : {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}) ::setenv(capacity, "64", 0);
  return true;
}();

OnednnMatmul find() {
#if defined(__x86_64__)
  const bool accepted = cpu_level() >= CpuLevel::kAvx512 && !__builtin_cpu_is("intel");
  if (!accepted || !libtorch_has_onednn_matmul() || !at::globalContext().hasMKLDNN()) return nullptr;
  return &at::native::mkldnn_matmul;
#else
  return nullptr;
#endif
}

OnednnMatmul onednn_function() {
  static const OnednnMatmul found = find();
  return found;
}

}  // namespace

bool libtorch_has_onednn_matmul() {
  return &at::native::mkldnn_matmul != nullptr;
}

bool onednn_multiplies_float32() {
  return onednn_function() != nullptr;
}

OnednnMatmul onednn_matmul_for(const at::Tensor& a, const at::Tensor& b) {
  const bool fits = onednn_function() && a.scalar_type() == at::kFloat && a.is_cpu() && b.scalar_type() == at::kFloat &&
                    b.is_cpu() && a.numel() > 0 && b.numel() > 0;
  return fits ? onednn_function() : nullptr;
}

}  // namespace tessera::nn
