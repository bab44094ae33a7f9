// Speed of collectives between processes, beside memcpy. Start one process per rank with the usual
// variables:
//   for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_PORT=29500 OMP_NUM_THREADS=1 ./comm_bench [MiB ...] & done; wait
// Two hosts, played by this one: also LOCAL_WORLD_SIZE=1 GROUP_RANK=$r MASTER_ADDR=127.0.0.1.
// Operations take turns, so that a drift of the machine touches all of them. A JSON line names the full buffer's size
// (world size x a rank's slice; a memcpy's bytes) and the best and the median time over repetitions of the slowest
// rank. --out FILE appends the lines to a file.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

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

struct Operation {
  const char* name;
  std::function<void()> run;
  std::vector<double> ms;
};

void print(std::FILE* file, const Operation& o, const char* type, std::int64_t mib) {
  std::fprintf(file,
               R"({"name": "tessera", "op": "%s", "dtype": "%s", "mib": %lld, "best_ms": %.4f, "ms": %.4f})"
               "\n",
               o.name, type, static_cast<long long>(mib), o.ms.front(), o.ms[o.ms.size() / 2]);
  std::fflush(file);
}

/// The collectives write to, and read from, tensors of their own: `full` and `slice`.
std::vector<Operation> operations(Communicator& c, std::int64_t full_bytes, at::ScalarType type) {
  const std::int64_t part = full_bytes / static_cast<std::int64_t>(c10::elementSize(type)) / c.size();
  const at::Tensor full = at::ones({part * c.size()}, type), slice = at::ones({part}, type);
  const at::Tensor from = at::ones({full_bytes}, at::kByte), to = at::ones({full_bytes}, at::kByte);
  std::vector<Operation> all;
  all.push_back({"memcpy", [=] { std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes()); }, {}});
  all.push_back({"all_gather", [=, &c] { c.all_gather(full, slice)->wait(); }, {}});
  all.push_back({"reduce_scatter", [=, &c] { c.reduce_scatter(slice, full, {.scale = 0.5})->wait(); }, {}});
  all.push_back({"all_reduce", [=, &c] { c.all_reduce(full, ReduceOp::kSum)->wait(); }, {}});
  auto region = c.map_shared(full_bytes * c.size());
  if (!region) return all;  // ranks on several hosts
  std::memset(region->data() + full_bytes * c.rank(), 0, static_cast<std::size_t>(full_bytes));
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < c.size(); ++r) {
    inputs.push_back(at::from_blob(region->data() + full_bytes * r + full_bytes / c.size() * c.rank(), {part},
                                   at::TensorOptions().dtype(type)));
  }
  all.push_back({"reduce_shared",
                 [=, keep = region, &c] { c.reduce_shared(slice, inputs, {.scale = 0.5})->wait_input_free(); },
                 {}});
  return all;
}

void measure(Communicator& c, std::int64_t mib, at::ScalarType type, const char* label, std::FILE* file) {
  auto all = operations(c, mib << 20, type);
  const int repetitions = mib > 100 ? 9 : 25;
  for (int i = 0; i < repetitions + 2; ++i) {
    for (Operation& o : all) {
      const double ms = seconds_of(c, o.run) * 1e3;
      if (i >= 2) o.ms.push_back(ms);
    }
  }
  if (c.rank() != 0) return;
  for (Operation& o : all) {
    std::sort(o.ms.begin(), o.ms.end());
    print(stdout, o, label, mib);
    if (file) print(file, o, label, mib);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto world = connect();
  std::vector<std::int64_t> sizes_mib;
  std::FILE* file = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--out" && i + 1 < argc) {
      if (world->rank() == 0) file = std::fopen(argv[i + 1], "a");
      ++i;
    } else {
      sizes_mib.push_back(std::atoll(argv[i]));
    }
  }
  if (sizes_mib.empty()) sizes_mib = {1, 4, 16, 64, 256};
  for (const std::int64_t mib : sizes_mib) {
    measure(*world, mib, at::kFloat, "fp32", file);
    measure(*world, mib, at::kBFloat16, "bf16", file);
  }
  if (file) std::fclose(file);
  return 0;
}
