#include "train/throughput.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

#include "nn/ops/gemm.h"
#include "train/trainer.h"

namespace tessera::train {

double measure_gemm_rate(comm::Communicator& group, at::ScalarType dtype, double step_seconds) {
  constexpr double kSeconds = 0.1, kShareOfStep = 0.1;
  using Clock = std::chrono::steady_clock;
  const bool is_short = step_seconds < kSeconds;
  const std::int64_t size = is_short ? 256 : 1024;
  const at::Tensor a = at::ones({size, size}, dtype);
  nn::gemm(a, a);
  group.barrier();
  const auto start = Clock::now();
  double seconds = 0;
  std::int64_t products = 0;
  while (seconds < std::min(kShareOfStep * step_seconds, kSeconds) || products == 0) {
    nn::gemm(a, a);
    ++products;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return sum_over_ranks(group, 2.0 * static_cast<double>(size * size * size * products) / seconds);
}

}  // namespace tessera::train
