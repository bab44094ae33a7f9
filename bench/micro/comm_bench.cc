// Speed of collectives between processes, beside memcpy. Start one process per rank with the usual
// variables:
//   for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_PORT=29500 OMP_NUM_THREADS=1 ./comm_bench [MiB ...] & done; wait
// Two hosts, played by this one: also LOCAL_WORLD_SIZE=1 GROUP_RANK=$r MASTER_ADDR=127.0.0.1.
// A line names the full buffer's size (world size x a rank's slice); the time is the best and the median over
// repetitions of the slowest rank; GB/s is full buffer / median time.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "tessera/comm/communicator.h"

using namespace tessera::comm;

namespace {

double seconds_of(Communicator& c, const std::function<void()>& run) {
  c.barrier();
  const auto start = std::chrono::steady_clock::now();
  run();
  at::Tensor t = at::zeros({1}, at::kDouble);
  t.fill_(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  c.all_reduce(t, ReduceOp::kMax)->wait();
  return *t.const_data_ptr<double>();
}

void measure(Communicator& c, const char* name, const char* type, double bytes, const std::function<void()>& run) {
  const int repetitions = bytes > 1e8 ? 9 : 25;
  run();
  run();
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) times.push_back(seconds_of(c, run));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  if (c.rank() != 0) return;
  std::printf("%-15s %-8s %4.0f MiB  best %8.3f ms  median %8.3f ms  %6.2f GB/s\n", name, type, bytes / (1 << 20),
              times.front() * 1e3, median * 1e3, bytes / median / 1e9);
  std::fflush(stdout);
}

void measure_all(Communicator& c, std::int64_t full_bytes, at::ScalarType type, const char* label) {
  const std::int64_t part = full_bytes / static_cast<std::int64_t>(c10::elementSize(type)) / c.size();
  const double bytes = static_cast<double>(full_bytes);
  at::Tensor full = at::ones({part * c.size()}, type), slice = at::ones({part}, type);
  measure(c, "all_gather", label, bytes, [&] { c.all_gather(full, slice)->wait(); });
  measure(c, "reduce_scatter", label, bytes, [&] { c.reduce_scatter(slice, full, {.scale = 0.5})->wait(); });
  measure(c, "all_reduce", label, bytes, [&] { c.all_reduce(full, ReduceOp::kSum)->wait(); });
  auto region = c.map_shared(full_bytes * c.size());
  if (!region) return;  // ranks on several hosts
  std::memset(region->data() + full_bytes * c.rank(), 0, static_cast<std::size_t>(full_bytes));
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < c.size(); ++r) {
    inputs.push_back(at::from_blob(region->data() + full_bytes * r + full_bytes / c.size() * c.rank(), {part},
                                   at::TensorOptions().dtype(type)));
  }
  measure(c, "reduce_shared", label, bytes, [&] { c.reduce_shared(slice, inputs, {.scale = 0.5})->wait_input_free(); });
}

}  // namespace

int main(int argc, char** argv) {
  const auto world = connect();
  std::vector<std::int64_t> sizes_mib{1, 16, 64, 256};
  if (argc > 1) sizes_mib.clear();
  for (int i = 1; i < argc; ++i) sizes_mib.push_back(std::atoll(argv[i]));
  for (std::int64_t mib : sizes_mib) {
    const std::int64_t bytes = mib << 20;
    std::vector<char> from(static_cast<std::size_t>(bytes), 1), to(static_cast<std::size_t>(bytes), 2);
    measure(*world, "memcpy", "bytes", static_cast<double>(bytes),
            [&] { std::memcpy(to.data(), from.data(), from.size()); });
    measure_all(*world, bytes, at::kFloat, "fp32");
    measure_all(*world, bytes, at::kBFloat16, "bf16");
  }
  return 0;
}
