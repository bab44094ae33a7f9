#include "nn/kernels/bf16_tiles.h"

#include "base/cpu_level.h"
#include "nn/kernels/amx_tiles.h"
#include "tessera/base/error.h"

namespace tessera::nn::kernels {

#if defined(__x86_64__)

namespace {

/// Of this thread: all have 16 rows of 64 bytes.
TESSERA_AMX void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, unused[14] = {};
    std::uint16_t bytes_of_rows[16] = {};
    std::uint8_t rows[16] = {};
  } shapes;
  for (int i = 0; i < 8; ++i) shapes.bytes_of_rows[i] = 64, shapes.rows[i] = kTile;
  written(&shapes);
  _tile_loadconfig(&shapes);
}

TESSERA_AMX void release_tiles() {
  _tile_release();
}

}  // namespace

bool has_bf16_tiles() {
  return cpu_level() >= CpuLevel::kAmx;
}

TileScope::TileScope() {
  configure_tiles();
}

TileScope::~TileScope() {
  release_tiles();
}

TESSERA_AMX void multiply_tiles(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, const DotSize& size,
                                bool add) {
  written(b.at);
  const std::int64_t row = a.row / 2, pairs = rounded_up(size.pairs, kTile);
  NothingBetween nothing;
  for (std::int64_t m = 0; m < size.rows; m += 2 * kTile) {
    const auto* rows = reinterpret_cast<const std::uint32_t*>(a.at) + m * row;
    for (std::int64_t n = 0; n < size.columns; n += 2 * kTile) {
      const TileProduct product{{rows, row, row * kTile, kTile, pairs},
                                {},
                                b.at + n,
                                b.stride,
                                {c.at + m * c.stride + n, c.stride, kTile, kTile * c.stride},
                                add};
      multiply_tiles<TileReads::kAgain>(product, size.rows - m, size.columns - n, nothing);
    }
  }
}

#else

bool has_bf16_tiles() {
  return false;
}
TileScope::TileScope() {
  TESSERA_CHECK(false, "this processor has no tiles of bfloat16");
}
TileScope::~TileScope() = default;
void multiply_tiles(const DotRows&, const VnniMatrix&, const SumMatrix&, const DotSize&, bool) {
  TESSERA_CHECK(false, "this processor has no tiles of bfloat16");
}

#endif

}  // namespace tessera::nn::kernels
