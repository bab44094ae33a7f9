#include "nn/kernels/bf16_gemm.h"

#include "nn/kernels/bf16_gemm_amx.h"
#include "nn/kernels/bf16_gemm_dot.h"
#include "nn/kernels/bf16_tiles.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>

namespace tessera::nn::kernels {
namespace {

/// 32-bit words: of the sums that wait for the next part of the inner dimension.
template <class Tiles>
std::int64_t sum_words(const Bf16Gemm& p, const Depth& depth) {
  if (depth.parts == 1) return 0;
  const auto block = Tiles::block(p);
  return rounded_up(std::min(p.rows, block.rows), Tiles::kRows) *
         std::min(rounded_up(p.columns, kPanelColumns), block.columns);
}

template <class Tiles>
std::int64_t words(const Bf16Gemm& p) {
  const auto depth = Tiles::depth(p.inner);
  return sum_words<Tiles>(p, depth) + Tiles::words(p, depth);
}

template <class Tiles>
void multiply(const Bf16Gemm& p, const Bf16GemmOutput& out, std::uint32_t* scratch) {
  const auto depth = Tiles::depth(p.inner);
  auto* sums = reinterpret_cast<float*>(scratch);
  Tiles tiles(p, out, depth, scratch + sum_words<Tiles>(p, depth));
  const Order order(p, depth, Tiles::block(p));
  for (std::optional<Place> now = order.first(); now;) {
    const auto next = order.after(*now);
    const auto column = now->panel.begin - now->columns.begin;
    tiles.multiply(*now, next, sums + (depth.parts > 1 ? column * rounded_up(now->rows.size(), Tiles::kRows) : 0));
    now = next;
  }
}

/// A tile of AMX has 32 of the inner dimension: half of them zeros would be no gain.
bool belongs_to_amx(const Bf16Gemm& p) {
  return has_bf16_tiles() && p.inner > 16;
}

}  // namespace

bool has_bf16_gemm() {
  return has_bf16_dot();
}

bool can_turn(const Bf16Gemm& product) {
  return !belongs_to_amx(product);
}

std::size_t bf16_gemm_scratch_bytes(const Bf16Gemm& product) {
  const auto all = belongs_to_amx(product) ? words<AmxTiles>(product) : words<DotTiles>(product);
  return static_cast<std::size_t>(all) * sizeof(std::uint32_t);
}

void bf16_gemm(const Bf16Gemm& product, const Bf16GemmOutput& out, void* scratch) {
  auto* memory = static_cast<std::uint32_t*>(scratch);
  if (belongs_to_amx(product))
    multiply<AmxTiles>(product, out, memory);
  else
    multiply<DotTiles>(product, out, memory);
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_bf16_gemm() {
  return false;
}
bool can_turn(const Bf16Gemm&) {
  return false;
}
std::size_t bf16_gemm_scratch_bytes(const Bf16Gemm&) {
  return 0;
}
void bf16_gemm(const Bf16Gemm&, const Bf16GemmOutput&, void*) {
  TESSERA_CHECK(false, "this processor has no bfloat16 dot products");
}

}  // namespace tessera::nn::kernels

#endif
