#include "train/throughput.h"

#include <ATen/ops/ones.h>

#include <chrono>

#include "nn/ops/gemm.h"
#include "train/trainer.h"

namespace tessera::train {

double measure_gemm_rate(comm::Communicator& group, at::ScalarType dtype) {
  constexpr std::int64_t kSize = 1024;
  constexpr double kSeconds = 0.1;
  using Clock = std::chrono::steady_clock;
  const at::Tensor a = at::ones({kSize, kSize}, dtype);
  nn::gemm(a, a);
  group.barrier();
  const auto start = Clock::now();
  double seconds = 0;
  std::int64_t products = 0;
  while (seconds < kSeconds) {
    nn::gemm(a, a);
    ++products;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return sum_over_ranks(group, 2.0 * kSize * kSize * kSize * static_cast<double>(products) / seconds);
}

}  // namespace tessera::train
