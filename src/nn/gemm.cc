#include "nn/gemm.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

// at::native::mkldnn_matmul(mat1, mat2, result, beta, alpha): exported by libtorch_cpu, but in none of its headers, so
// it is looked up and can be missed.
using MkldnnMatmul = void (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, float, float);

MkldnnMatmul find_mkldnn_matmul() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel") || !__builtin_cpu_supports("avx2") || !at::globalContext().hasMKLDNN()) return nullptr;
  return reinterpret_cast<MkldnnMatmul>(::dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
#else
  return nullptr;
#endif
}

/// Null where libtorch's own choice is right.
MkldnnMatmul onednn_for(const at::Tensor& a, const at::Tensor& b) {
  static const MkldnnMatmul function = find_mkldnn_matmul();
  const bool fits = function && a.scalar_type() == at::kFloat && a.is_cpu() && b.scalar_type() == at::kFloat &&
                    b.is_cpu() && a.numel() > 0 && b.numel() > 0;
  return fits ? function : nullptr;
}

}  // namespace

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  if (!onednn_for(a, b)) return a.dim() == 3 ? at::bmm(a, b) : at::mm(a, b);
  auto sizes = a.sizes().vec();
  sizes.back() = b.sizes().back();
  auto out = at::empty(sizes, a.options());
  gemm_to(out, a, b);
  return out;
}

void gemm_to(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (const auto onednn = onednn_for(a, b)) {
    onednn(a, b, out, 0.0f, static_cast<float>(alpha));
  } else if (a.dim() == 3) {
    at::baddbmm_out(const_cast<at::Tensor&>(out), out, a, b, 0, alpha);
  } else {
    at::addmm_out(const_cast<at::Tensor&>(out), out, a, b, 0, alpha);
  }
}

void gemm_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (const auto onednn = onednn_for(a, b)) {
    onednn(a, b, out, 1.0f, static_cast<float>(alpha));
  } else if (a.dim() == 3) {
    out.baddbmm_(a, b, 1, alpha);
  } else {
    out.addmm_(a, b, 1, alpha);
  }
}

}  // namespace tessera::nn
