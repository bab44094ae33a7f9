#pragma once
// libtorch multiplies float32 matrices with MKL, which runs at half speed on processors that are not Intel's. The
// oneDNN that libtorch carries does not; its own way there is exported, but declared in none of its headers.
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// out = beta * out + alpha * a b.
using OnednnMatmul = void (*)(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta, float alpha);

/// This libtorch exports it.
bool libtorch_has_onednn_matmul();
/// Null where libtorch's own choice is right: for other dtypes and devices, on Intel's processors, below
/// CpuLevel::kAvx512 (where oneDNN has no bfloat16 libtorch refuses float32, too), without that function.
OnednnMatmul onednn_matmul_for(const at::Tensor& a, const at::Tensor& b);
/// It is what multiplies float32 on CPUs here.
bool onednn_multiplies_float32();

}  // namespace tessera::nn
