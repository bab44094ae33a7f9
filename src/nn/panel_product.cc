#include "nn/panel_product.h"

#include "base/cpu_features.h"
#include "nn/bfloat16_pairs.h"
#include "nn/pair_products.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kVectors = 4, kPanel = kVectors * kFloats;  // columns that are packed together
constexpr std::int64_t kTileRows = 6;        // 24 sums, 4 vectors of columns and a pair of rows: 29 of 32 registers
constexpr std::int64_t kLeftPanel = 48;      // rows that are packed together: whole tiles, whole cache lines
constexpr std::int64_t kDepth = 512;         // pairs of a panel: 128 KiB, in the second cache
constexpr std::int64_t kBlockRows = 768;     // for which a panel is packed once
constexpr std::int64_t kBlockColumns = 512;  // whose sums wait for the next kDepth pairs
constexpr std::int64_t kLinePairs = 16;      // in a cache line

constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// The inner dimension in equal parts.
struct Depth {
  std::int64_t pairs, parts, part;
  explicit Depth(std::int64_t inner)
      : pairs((inner + 1) / 2),
        parts((pairs + kDepth - 1) / kDepth),
        part(rounded_up((pairs + parts - 1) / parts, kLinePairs)) {}
};

/// Fetches a rectangle of memory, some lines at a time: it falls to the second cache until it is packed.
struct Ahead {
  const char* at = nullptr;
  std::int64_t rows = 0, lines = 0, stride = 0;
  std::int64_t row = 0, line = 0;

  void fetch(std::int64_t count) {
    for (; count > 0 && row < rows; --count) {
      _mm_prefetch(at + row * stride + line * 64, _MM_HINT_T0);
      if (++line == lines) line = 0, ++row;
    }
  }
};

/// What a tile needs beside its place.
struct Tile {
  const std::uint32_t *b, *v;  // panels
  std::int64_t pairs, rank_pairs;
  bool first, last;  // of the parts of the inner dimension
  __mmask16 tail;    // of the last vector of columns
  PanelOutput out;
};

template <int Rows, int Columns>
TESSERA_PAIRS_INLINE void add_products(__m512 (&sums)[Rows][Columns], const std::uint16_t* a, const PairRows& rows,
                                       const std::uint32_t* b, std::int64_t pairs) {
  for (std::int64_t p = 0; p < pairs; ++p, a += rows.pair, b += kPanel) {
    __m512bh columns[Columns];
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n) columns[n] = as_pairs(_mm512_loadu_si512(b + n * kFloats));
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m) {
      const auto row = pair_everywhere(a + m * rows.row);
#pragma GCC unroll 4
      for (int n = 0; n < Columns; ++n) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], columns[n], row);
    }
  }
}

TESSERA_PAIRS_INLINE void put(const PanelOutput& out, std::int64_t at, __mmask16 mask, __m512 sum) {
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(out.alpha));
  auto* y = out.at + at;
  if (out.add) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(high_halves(mask, y)));
  _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

/// sums: of earlier parts, rows kPanel apart. row: of the output.
template <int Rows, int Columns>
TESSERA_PAIRS_INLINE void tile(const Tile& t, const PairRows& a, const PairRows& u, float* earlier, std::int64_t row) {
  __m512 sums[Rows][Columns];
#pragma GCC unroll 6
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n)
      sums[m][n] = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(earlier + m * kPanel + n * kFloats);
  for (std::int64_t p = 0; p < t.pairs; p += kLinePairs) {
    const auto* now = a.at + p * a.pair;
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m) _mm_prefetch(reinterpret_cast<const char*>(now + (Rows + m) * a.row), _MM_HINT_T0);
    add_products(sums, now, a, t.b + p * kPanel, std::min(kLinePairs, t.pairs - p));
  }
  if (!t.last) {
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < Columns; ++n) _mm512_storeu_ps(earlier + m * kPanel + n * kFloats, sums[m][n]);
    return;
  }
  add_products(sums, u.at, u, t.v, t.rank_pairs);
#pragma GCC unroll 6
  for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < Columns; ++n)
      put(t.out, (row + m) * t.out.stride + n * kFloats, n + 1 == Columns ? t.tail : kAll, sums[m][n]);
}

/// Rows of the first factor, as they stand or packed; `block` counts from the packed ones.
struct Left {
  const std::uint16_t* at;
  std::int64_t row, pairs;
  bool packed;
  PairRows from(std::int64_t block) const {
    if (!packed) return {at + block * row, row, 2};
    return {at + (block / kLeftPanel * pairs * kLeftPanel + block % kLeftPanel) * 2, 2, 2 * kLeftPanel};
  }
};

template <int Rows, int Columns>
TESSERA_PAIRS void last_tile(std::int64_t rows, const Tile& t, const PairRows& a, const PairRows& u, float* earlier,
                             std::int64_t row) {
  if (rows == Rows) return tile<Rows, Columns>(t, a, u, earlier, row);
  if constexpr (Rows > 1) last_tile<Rows - 1, Columns>(rows, t, a, u, earlier, row);
}

/// All rows of a block against one panel.
template <int Columns>
TESSERA_PAIRS void column_of_tiles(const Tile& t, const Left& a, const Left& u, float* earlier, std::int64_t first_row,
                                   std::int64_t rows, Ahead& ahead) {
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t lines = (ahead.rows * ahead.lines + tiles - 1) / tiles;
  std::int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) {
    ahead.fetch(lines);
    tile<kTileRows, Columns>(t, a.from(m), u.from(m), earlier + m * kPanel, first_row + m);
  }
  if (m < rows)
    last_tile<kTileRows - 1, Columns>(rows - m, t, a.from(m), u.from(m), earlier + m * kPanel, first_row + m);
}

/// Rows `from` to `to` of b [inner, columns], columns `first` and on, as pairs: [pairs, kPanel].
void pack(const Bfloat16Matrix& b, std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t columns,
          std::uint32_t* out) {
  const auto* x = b.at + from * b.row + first * b.column;
  if (b.column == 1)
    pack_pairs(x, b.row, to - from, columns, out, kPanel);
  else
    pack_transposed_pairs(x, b.column, columns, to - from, out, kPanel);
}

Ahead ahead_of(const Bfloat16Matrix& b, std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t columns) {
  const auto* at = reinterpret_cast<const char*>(b.at + from * b.row + first * b.column);
  const auto lines = [](std::int64_t elements) { return (elements * 2 + 63) / 64; };
  if (b.column == 1) return {at, to - from, lines(columns), b.row * 2};
  return {at, columns, lines(to - from), b.column * 2};
}

bool packs_left(const Bfloat16Matrix& a) {
  return a.column != 1;
}

struct Scratch {
  std::int64_t panel, ranks, left, sums;  // 32-bit words
  explicit Scratch(const PanelProduct& p) {
    const Depth depth(p.inner);
    const auto rows = std::min(p.rows, kBlockRows);
    panel = std::min(depth.part, rounded_up(depth.pairs, kLinePairs)) * kPanel;
    ranks = p.rank / 2 * kPanel;
    left = packs_left(p.a) ? rounded_up(rows, kLeftPanel) * depth.part : 0;
    sums = depth.parts > 1 ? rounded_up(rows, kTileRows) * std::min(rounded_up(p.columns, kPanel), kBlockColumns) : 0;
  }
};

}  // namespace

bool multiplies_in_panels() {
  static const bool does = multiplies_bfloat16_pairs() && [] {
    const auto names = native_bfloat16();
    return std::find(names.begin(), names.end(), "amx_bf16") == names.end();
  }();
  return does;
}

std::size_t panel_scratch_bytes(const PanelProduct& product) {
  const Scratch words(product);
  return static_cast<std::size_t>(words.panel + words.ranks + words.left + words.sums) * sizeof(std::uint32_t);
}

void panel_product(const PanelProduct& p, const PanelOutput& out, void* scratch) {
  const Depth depth(p.inner);
  const Scratch words(p);
  auto* panel = static_cast<std::uint32_t*>(scratch);
  auto *ranks = panel + words.panel, *left = ranks + words.ranks;
  auto* sums = reinterpret_cast<float*>(left + words.left);
  const std::int64_t block_columns = depth.parts > 1 ? kBlockColumns : p.columns;
  for (std::int64_t n0 = 0; n0 < p.columns; n0 += block_columns) {
    const std::int64_t n1 = std::min(p.columns, n0 + block_columns);
    for (std::int64_t m0 = 0; m0 < p.rows; m0 += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, p.rows - m0);
      for (std::int64_t d = 0; d < depth.pairs; d += depth.part) {
        const std::int64_t pairs = std::min(depth.part, depth.pairs - d), k0 = 2 * d,
                           k1 = std::min(p.inner, k0 + 2 * pairs);
        Left a{p.a.at + m0 * p.a.row + k0 * p.a.column, p.a.row, pairs, packs_left(p.a)};
        if (a.packed) {
          for (std::int64_t m = 0; m < rows; m += kLeftPanel)
            pack_pairs(a.at + m, p.a.column, k1 - k0, std::min(kLeftPanel, rows - m), left + m * pairs, kLeftPanel);
          a.at = reinterpret_cast<const std::uint16_t*>(left);
        }
        const Left u{p.rank > 0 ? p.u.at + m0 * p.u.row : a.at, p.rank > 0 ? p.u.row : 0, p.rank / 2, false};
        for (std::int64_t n = n0; n < n1; n += kPanel) {
          const std::int64_t columns = std::min(kPanel, n1 - n), vectors = (columns + kFloats - 1) / kFloats;
          Tile t{panel, ranks, pairs, p.rank / 2, d == 0, d + pairs == depth.pairs, 0, out};
          pack(p.b, k0, k1, n, columns, panel);
          if (t.last && p.rank > 0) pack(p.v, 0, p.rank, n, columns, ranks);
          Ahead ahead;
          if (n + kPanel < n1)
            ahead = ahead_of(p.b, k0, k1, n + kPanel, std::min(kPanel, n1 - n - kPanel));
          else if (!t.last)
            ahead = ahead_of(p.b, k1, std::min(p.inner, k1 + 2 * depth.part), n0, std::min(kPanel, n1 - n0));
          t.tail = first_lanes(columns - (vectors - 1) * kFloats);
          t.out.at = out.at + n;
          float* earlier = sums + (n - n0) * rounded_up(rows, kTileRows);
          switch (vectors) {
            case 1:
              column_of_tiles<1>(t, a, u, earlier, m0, rows, ahead);
              break;
            case 2:
              column_of_tiles<2>(t, a, u, earlier, m0, rows, ahead);
              break;
            case 3:
              column_of_tiles<3>(t, a, u, earlier, m0, rows, ahead);
              break;
            default:
              column_of_tiles<4>(t, a, u, earlier, m0, rows, ahead);
          }
        }
      }
    }
  }
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool multiplies_in_panels() {
  return false;
}
std::size_t panel_scratch_bytes(const PanelProduct&) {
  return 0;
}
void panel_product(const PanelProduct&, const PanelOutput&, void*) {
  TESSERA_CHECK(false, "no instructions for pairs of bfloat16");
}

}  // namespace tessera::nn::kernels

#endif
