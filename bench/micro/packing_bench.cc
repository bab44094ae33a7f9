// How fast dense weights are packed while they are read, by elements of a matrix in bfloat16 that lies in the page
// cache:
//
//   cmake --preset release -DTESSERA_BENCH=ON && ninja -C build/release packing_bench
//   build/release/bench/packing_bench FOLDER [THREADS]     # FOLDER: for a file of 128 MiB, which is removed
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "quant/packed_source.h"
#include "tessera/io/tensor_source.h"

namespace {

using namespace tessera;

constexpr std::int64_t kRows = 8192, kColumns = 8192;

/// Seconds; the best of three.
double packing_time(const std::shared_ptr<const io::TensorSource>& dense, const quant::PackedSettings& settings) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto source = quant::packing_source(dense, {{"w", {settings, at::kBFloat16, false}}});
    const auto fields = source->codec("w")->fields(kRows, kColumns);
    std::vector<at::Tensor> out;
    for (const auto& field : fields) out.push_back(at::zeros(field.shape, field.dtype).view(-1).view(at::kByte));
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < fields.size(); ++i) source->read_bytes(fields[i].full_name("w"), 0, out[i]);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "packing_bench FOLDER [THREADS]\n";
    return 2;
  }
  if (argc > 2) at::set_num_threads(std::atoi(argv[2]));
  const auto file = std::string(argv[1]) + "/packing_bench.safetensors";
  at::manual_seed(1);
  io::write_safetensors(file, {{"w", at::randn({kRows, kColumns}).to(at::kBFloat16)}});
  const std::shared_ptr<const io::TensorSource> dense = io::open_safetensors(file);
  const std::vector<std::pair<std::string, quant::PackedSettings>> forms = {
      {"nf4", quant::FourBitSettings{}},
      {"nf4, double quantisation", quant::FourBitSettings{.nested = true}},
      {"fp4", quant::FourBitSettings{.type = quant::FourBitType::kFp4}},
      {"int8", quant::Int8Settings{}}};
  for (const auto& [name, settings] : forms) {
    const double seconds = packing_time(dense, settings);
    std::cout << name << ": " << static_cast<double>(kRows * kColumns) / seconds / 1e6
              << " million elements a second\n";
  }
  std::filesystem::remove(file);
}
