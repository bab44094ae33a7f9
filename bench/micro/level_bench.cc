// What this level of instructions takes for a layer's worth of work on one thread, by processor time (other programs
// disturb it less), medians. For every level of this machine:
//
//   for level in plain avx2 avx512 avx512_bf16; do
//     OMP_NUM_THREADS=1 tests/kernels/at_level.sh $level build/release/bench/level_bench; done
//
// Prints a row of a Markdown table: level, then milliseconds.
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "nn/kernels/activation_kernels.h"
#include "nn/kernels/norm_kernels.h"
#include "nn/kernels/row_sums.h"
#include "nn/ops/gemm.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kTokens = 512, kDim = 768, kInner = 3072;

double thread_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

std::string median_ms(const std::function<void()>& pass) {
  std::vector<double> times;
  double spent = 0;
  while (times.size() < 5 || (spent < 500 && times.size() < 200)) {
    const double begin = thread_ms();
    pass();
    times.push_back(thread_ms() - begin);
    spent += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return fmt::format(" {:.2f} |", times[times.size() / 2]);
}

std::string product(at::ScalarType dtype) {
  const auto x = at::randn({kTokens, kDim}).to(dtype), w = at::randn({kInner, kDim}).to(dtype);
  return median_ms([&] { nn::gemm(x, w.t()); });
}

/// Forward and backward of one row after the other.
template <class T>
std::string gelu(at::ScalarType dtype) {
  const auto x = at::randn({kTokens, kInner}).to(dtype), g = at::randn({kTokens, kInner}).to(dtype);
  const auto y = x.clone(), gx = x.clone();
  const auto row = [](const at::Tensor& t, std::int64_t r) { return static_cast<T*>(t.data_ptr()) + r * kInner; };
  return median_ms([&] {
    for (std::int64_t r = 0; r < kTokens; ++r) {
      nn::kernels::activate(Activation::kGeluTanh,
                            nn::kernels::ActivationRow<T>{row(x, r), nullptr, row(y, r), kInner});
      nn::kernels::activation_gradient(
          Activation::kGeluTanh,
          nn::kernels::ActivationGradientRow<T>{row(g, r), row(x, r), nullptr, row(gx, r), nullptr, nullptr, kInner});
    }
  });
}

template <class T>
std::string layer_norm(at::ScalarType dtype) {
  const auto x = at::randn({kTokens, kDim}).to(dtype), g = at::randn({kTokens, kDim}).to(dtype);
  const auto y = x.clone(), gx = x.clone();
  std::vector<float> w(kDim, 1.0f), b(kDim), gw(kDim), gb(kDim);
  const auto row = [](const at::Tensor& t, std::int64_t r) { return static_cast<T*>(t.data_ptr()) + r * kDim; };
  return median_ms([&] {
    for (std::int64_t r = 0; r < kTokens; ++r) {
      const auto moments =
          nn::kernels::layer_norm(nn::kernels::LayerNormRow<T>{row(x, r), w.data(), b.data(), row(y, r), kDim, 1e-5f});
      nn::kernels::layer_norm_gradient(nn::kernels::LayerNormGradientRow<T>{row(g, r), row(x, r), w.data(), moments,
                                                                            row(gx, r), gw.data(), gb.data(), kDim});
    }
  });
}

std::string exponentials() {
  const auto x = at::randn({kTokens, kInner}), y = x.clone();
  return median_ms([&] {
    for (std::int64_t r = 0; r < kTokens; ++r)
      nn::kernels::exponentials(x.data_ptr<float>() + r * kInner, y.data_ptr<float>() + r * kInner, 1.0f, 4.0f, kInner);
  });
}

void run() {
  fmt::print("| {} |{}{}{}{}{}{}\n", name(cpu_level()), product(at::kBFloat16), product(at::kFloat),
             gelu<std::uint16_t>(at::kBFloat16), gelu<float>(at::kFloat), layer_norm<std::uint16_t>(at::kBFloat16),
             exponentials());
}

}  // namespace
}  // namespace tessera::bench

int main() {
  try {
    tessera::bench::run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "level_bench: {}\n", e.what());
    return 1;
  }
}
