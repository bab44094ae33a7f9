// What packing costs a bfloat16 product in panels: with a dense weight, which is packed on the way; with panels that
// are ready and only copied; with nothing packed at all, which no layout can beat; with an NF4 weight, which is decoded
// on the way.
//
//   cmake --preset release -DTESSERA_BENCH=ON && ninja -C build/release panel_bench
//   OMP_NUM_THREADS=1 build/release/bench/panel_bench
//
// On processors without products of bfloat16: float32 by libtorch's library and by nn::gemm(), and bfloat16 and NF4
// weights, which become float32 on the way.
//
// Prints a Markdown table: the least processor time of 14 products on one thread, the ways taking turns, weights out of
// the cache.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "nn/kernels/bf16_gemm.h"
#include "nn/ops/gemm.h"
#include "nn/ops/packed_panels.h"
#include "quant/four_bit_codec.h"

namespace tessera::bench {
namespace {

using nn::kernels::kPanelColumns;
using nn::kernels::PanelFactor;
using nn::kernels::PanelPart;

/// Panels that are ready, one after the other; the values do not matter here.
class ReadyPanels final : public PanelFactor {
 public:
  ReadyPanels(const at::Tensor& memory, std::int64_t inner)
      : memory_(static_cast<const std::uint32_t*>(memory.const_data_ptr())), inner_(inner) {}
  void pack(const PanelPart& part, std::uint32_t* out) const override {
    std::memcpy(out, at(part), static_cast<std::size_t>(part.rows / 2) * kBytes);
  }
  nn::kernels::MemoryRows memory(const PanelPart& part) const override {
    return {at(part), part.rows / 2, kBytes, kBytes};
  }

 private:
  static constexpr std::int64_t kBytes = kPanelColumns * sizeof(std::uint32_t);
  const std::uint32_t* at(const PanelPart& part) const {
    return memory_ + (part.column / kPanelColumns * (inner_ / 2) + part.row / 2) * kPanelColumns;
  }
  const std::uint32_t* memory_;
  std::int64_t inner_;
};

class NoPanels final : public PanelFactor {
 public:
  void pack(const PanelPart&, std::uint32_t*) const override {}
  nn::kernels::MemoryRows memory(const PanelPart&) const override { return {}; }
};

const std::uint16_t* bits(const at::Tensor& t) {
  return static_cast<const std::uint16_t*>(t.const_data_ptr());
}

double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Shape {
  std::int64_t rows, out, in;
};

/// x W^T, or g W where `transposed`.
void measure(const Shape& s, bool transposed) {
  constexpr std::size_t kWays = 4;
  constexpr int kRounds = 14;
  const std::int64_t inner = transposed ? s.out : s.in, columns = transposed ? s.in : s.out;
  const auto a = at::randn({s.rows, inner}).to(at::kBFloat16), y = at::empty({s.rows, columns}, at::kBFloat16);
  const auto packed = tensor::pack(quant::four_bit_codec({.nested = true}), at::randn({s.out, s.in}));
  std::vector<at::Tensor> dense;
  std::vector<tensor::PackedMatrix> codes;
  for (std::int64_t bytes = 0; bytes < 96 << 20; bytes += 2 * s.out * s.in) {
    dense.push_back(at::randn({s.out, s.in}).to(at::kBFloat16));
    codes.push_back(packed);
    for (auto& field : codes.back().fields) field = field.clone();
  }
  std::array<double, kWays> best;
  best.fill(1e9);
  for (std::size_t turn = 0; turn < kRounds * kWays; ++turn) {
    const auto& weight = dense[turn % dense.size()];
    const ReadyPanels ready(weight, inner);
    const NoPanels none;
    const nn::PackedPanels nf4(codes[turn % codes.size()],
                               transposed ? tensor::PairsOf::kRows : tensor::PairsOf::kColumns);
    const std::array<const PanelFactor*, kWays> factors = {nullptr, &ready, &none, &nf4};
    const auto way = turn % kWays;
    const nn::kernels::Bf16Gemm product{{bits(a), inner, 1},
                                        {bits(weight), transposed ? s.in : 1, transposed ? 1 : s.in},
                                        {},
                                        {},
                                        s.rows,
                                        columns,
                                        inner,
                                        0,
                                        factors[way],
                                        0};
    const auto scratch =
        at::zeros({static_cast<std::int64_t>(nn::kernels::bf16_gemm_scratch_bytes(product))}, at::kByte);
    const double begin = thread_seconds();
    nn::kernels::bf16_gemm(product, {static_cast<std::uint16_t*>(y.mutable_data_ptr()), columns, false, 1.0f},
                           scratch.mutable_data_ptr());
    best[way] = std::min(best[way], thread_seconds() - begin);
  }
  const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
  fmt::print("| {} x {} x {} | {} | {:.2f} | {:.0f} | {:.3f} | {:.3f} | {:.3f} |\n", s.rows, s.out, s.in,
             transposed ? "g W" : "x W^T", best[0] * 1e3, 1e-9 * flops / best[0], best[1] / best[0], best[2] / best[0],
             best[3] / best[0]);
}

/// Products of a few rows as a layer makes them: with dense weights, and with packed ones.
void measure_few(const Shape& s, bool transposed) {
  constexpr std::size_t kRounds = 12;
  const std::int64_t inner = transposed ? s.out : s.in;
  const auto a = at::randn({s.rows, inner}).to(at::kBFloat16);
  const auto packed = tensor::pack(quant::four_bit_codec({.nested = true}), at::randn({s.out, s.in}));
  std::vector<at::Tensor> dense;
  for (int i = 0; i < 4; ++i) dense.push_back(at::randn({s.out, s.in}).to(at::kBFloat16));
  std::array<double, 2> best = {1e9, 1e9};
  for (std::size_t turn = 0; turn < 2 * kRounds; ++turn) {
    const auto& weight = dense[turn / 2 % dense.size()];
    const double begin = thread_seconds();
    if (turn % 2 == 0) {
      nn::gemm(a, transposed ? weight : weight.t());
    } else {
      nn::gemm_packed(a, {packed, !transposed}, {}, {});
    }
    best[turn % 2] = std::min(best[turn % 2], thread_seconds() - begin);
  }
  fmt::print("| {} x {} x {} | {} | {:.2f} | {:.2f} |\n", s.rows, s.out, s.in, transposed ? "g W" : "x W^T",
             best[0] * 1e3, best[1] * 1e3);
}

/// The library's product of float32, ours, that of a bfloat16 weight, and of NF4 codes.
void measure_float(const Shape& s, bool transposed) {
  constexpr std::size_t kWays = 4, kRounds = 14;
  const std::int64_t inner = transposed ? s.out : s.in;
  const auto a = at::randn({s.rows, inner}), narrow_a = a.to(at::kBFloat16);
  const auto packed = tensor::pack(quant::four_bit_codec({.nested = true}), at::randn({s.out, s.in}));
  std::vector<at::Tensor> dense, narrow;
  std::vector<tensor::PackedMatrix> codes;
  for (std::int64_t bytes = 0; bytes < 96 << 20; bytes += 2 * s.out * s.in) {
    dense.push_back(at::randn({s.out, s.in}));
    narrow.push_back(dense.back().to(at::kBFloat16));
    codes.push_back(packed);
    for (auto& field : codes.back().fields) field = field.clone();
  }
  std::array<double, kWays> best;
  best.fill(1e9);
  for (std::size_t turn = 0; turn < kRounds * kWays; ++turn) {
    const auto way = turn % kWays, at = turn / kWays % dense.size();
    const double begin = thread_seconds();
    if (way == 0) {
      at::mm(a, transposed ? dense[at] : dense[at].t());
    } else if (way == 1) {
      nn::gemm(a, transposed ? dense[at] : dense[at].t());
    } else if (way == 2) {
      nn::gemm(narrow_a, transposed ? narrow[at] : narrow[at].t());
    } else {
      nn::gemm_packed(a, {codes[at], !transposed}, {}, {});
    }
    best[way] = std::min(best[way], thread_seconds() - begin);
  }
  const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
  fmt::print("| {} x {} x {} | {} | {:.2f} | {:.0f} | {:.3f} | {:.3f} | {:.3f} |\n", s.rows, s.out, s.in,
             transposed ? "g W" : "x W^T", best[0] * 1e3, 1e-9 * flops / best[0], best[1] / best[0], best[2] / best[0],
             best[3] / best[0]);
}

void run_in_float() {
  fmt::print("| rows x out x in | product | library, fp32 ms | GFLOP/s | fp32, of it | bf16, of it | NF4, of it |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : {Shape{32, 4096, 4096},
                             {64, 4096, 4096},
                             {128, 4096, 4096},
                             {512, 768, 768},
                             {512, 2048, 2048},
                             {512, 5632, 2048}})
    for (const bool transposed : {false, true}) measure_float(shape, transposed);
}

void run() {
  fmt::print(
      "| rows x out x in | product | dense ms | GFLOP/s | ready panels, of it | no packing, of it | NF4, of it |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : {Shape{32, 8192, 8192},
                             {64, 8192, 8192},
                             {128, 8192, 8192},
                             {256, 768, 768},
                             {256, 2048, 768},
                             {256, 576, 1536},
                             {256, 2048, 2048},
                             {256, 5632, 2048},
                             {256, 2048, 5632},
                             {512, 5632, 2048}})
    for (const bool transposed : {false, true}) measure(shape, transposed);
  fmt::print("\n| rows x out x in | product | dense ms | NF4 ms |\n|---|---|---|---|\n");
  for (const Shape& shape :
       {Shape{1, 2048, 2048}, {8, 2048, 2048}, {16, 2048, 2048}, {16, 5632, 2048}, {31, 8192, 8192}})
    for (const bool transposed : {false, true}) measure_few(shape, transposed);
}

}  // namespace
}  // namespace tessera::bench

int main() {
  if (!tessera::nn::kernels::has_bf16_gemm()) {
    tessera::bench::run_in_float();
    return 0;
  }
  tessera::bench::run();
}
