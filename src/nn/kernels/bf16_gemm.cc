#include "nn/kernels/bf16_gemm.h"

#include "base/cpu_level.h"
#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_dot_tiles.h"
#include "tessera/base/error.h"

#if defined(__x86_64__)

#include <algorithm>

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kPanel = kPanelColumns;  // 4 vectors
constexpr std::int64_t kTileRows = 6;           // 24 sums, 4 vectors of columns and a pair of rows: 29 of 32 registers
constexpr std::int64_t kLeftPanel = 48;         // rows that are packed together: whole tiles, whole cache lines
constexpr std::int64_t kDepth = 512;            // pairs of a panel: 128 KiB, in the second cache
constexpr std::int64_t kBlockRows = 768;        // for which a panel is packed once
constexpr std::int64_t kBlockColumns = 512;     // whose sums wait for the next kDepth pairs
constexpr std::int64_t kLinePairs = 16;         // in a cache line

constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// body(range) over [begin, end) in steps.
template <class Body>
void for_ranges(const Range& all, std::int64_t step, const Body& body) {
  for (std::int64_t i = all.begin; i < all.end; i += step) body(Range{i, std::min(all.end, i + step)});
}

/// The inner dimension in equal parts of so many pairs.
struct Depth {
  std::int64_t parts, part;
  explicit Depth(std::int64_t inner) {
    const std::int64_t pairs = (inner + 1) / 2;
    parts = (pairs + kDepth - 1) / kDepth;
    part = rounded_up((pairs + parts - 1) / parts, kLinePairs);
  }
};

/// What a tile needs beside its place.
struct Tile {
  const std::uint32_t *b, *v;  // panels
  std::int64_t pairs, rank_pairs;
  bool first, last;  // of the parts of the inner dimension
  __mmask16 tail;    // of the last vector of columns
  Bf16GemmOutput out;
};

TESSERA_BF16_DOT_INLINE void put(const Bf16GemmOutput& out, std::int64_t at, __mmask16 mask, __m512 sum) {
  sum = _mm512_mul_ps(sum, _mm512_set1_ps(out.alpha));
  auto* y = out.at + at;
  if (out.add) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(high_halves(mask, y)));
  _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

/// earlier: sums of earlier parts, rows kPanel apart. row: of the output.
template <int Rows, int Columns>
TESSERA_BF16_DOT_INLINE void tile(const Tile& t, const DotRows& a, const DotRows& u, float* earlier, std::int64_t row) {
  __m512 sums[Rows][Columns];
  load_sums(sums, !t.first, earlier, kPanel);
  for (std::int64_t p = 0; p < t.pairs; p += kLinePairs) {
    const DotRows now{a.at + p * a.pair, a.row, a.pair};
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m)
      _mm_prefetch(reinterpret_cast<const char*>(now.at + (Rows + m) * a.row), _MM_HINT_T0);
    add_dot_products(sums, now, {t.b + p * kPanel, kPanel}, std::min(kLinePairs, t.pairs - p));
  }
  if (!t.last) return store_sums(sums, earlier, kPanel);
  add_dot_products(sums, u, {t.v, kPanel}, t.rank_pairs);
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
  DotRows from(std::int64_t block) const {
    if (!packed) return {at + block * row, row, 2};
    return {at + (block / kLeftPanel * pairs * kLeftPanel + block % kLeftPanel) * 2, 2, 2 * kLeftPanel};
  }
};

template <int Rows, int Columns>
TESSERA_BF16_DOT void last_tile(std::int64_t rows, const Tile& t, const DotRows& a, const DotRows& u, float* earlier,
                                std::int64_t row) {
  if (rows == Rows) return tile<Rows, Columns>(t, a, u, earlier, row);
  if constexpr (Rows > 1) last_tile<Rows - 1, Columns>(rows, t, a, u, earlier, row);
}

/// All rows of a block against one panel; block: of the output.
template <int Columns>
TESSERA_BF16_DOT void column_of_tiles(const Tile& t, const Left& a, const Left& u, float* earlier, const Range& block,
                                      Prefetch ahead) {
  const std::int64_t rows = block.size(), first_row = block.begin;
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t lines = (ahead.lines() + tiles - 1) / tiles;
  std::int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) {
    ahead.fetch(lines);
    tile<kTileRows, Columns>(t, a.from(m), u.from(m), earlier + m * kPanel, first_row + m);
  }
  if (m < rows)
    last_tile<kTileRows - 1, Columns>(rows - m, t, a.from(m), u.from(m), earlier + m * kPanel, first_row + m);
}

/// Some of b [inner, columns] in the VNNI layout: [pairs, kPanel].
void pack(const Bfloat16Matrix& b, const Range& inner, const Range& columns, std::uint32_t* out) {
  const auto* x = b.at + inner.begin * b.row + columns.begin * b.column;
  if (b.column == 1)
    pack_vnni(x, b.row, inner.size(), columns.size(), out, kPanel);
  else
    pack_vnni_transposed(x, b.column, columns.size(), inner.size(), out, kPanel);
}

PanelPart part_of(const Bf16Gemm& p, const Range& inner, const Range& columns) {
  return {inner.begin, inner.size(), p.first_column + columns.begin, columns.size()};
}

void pack_second(const Bf16Gemm& p, const Range& inner, const Range& columns, std::uint32_t* out) {
  if (p.factor == nullptr) return pack(p.b, inner, columns, out);
  p.factor->pack(part_of(p, inner, columns), out);
}

Prefetch ahead_of(const Bf16Gemm& p, const Range& inner, const Range& columns) {
  if (p.factor != nullptr) return Prefetch(p.factor->memory(part_of(p, inner, columns)));
  const auto& b = p.b;
  const auto* at = b.at + inner.begin * b.row + columns.begin * b.column;
  if (b.column == 1) return Prefetch({at, inner.size(), columns.size() * 2, b.row * 2});
  return Prefetch({at, columns.size(), inner.size() * 2, b.column * 2});
}

bool packs_left(const Bfloat16Matrix& a) {
  return a.column != 1;
}

struct Scratch {
  std::int64_t panel, ranks, left, sums;  // 32-bit words
  explicit Scratch(const Bf16Gemm& p) {
    const Depth depth(p.inner);
    const auto rows = std::min(p.rows, kBlockRows);
    panel = depth.part * kPanel;
    ranks = p.rank / 2 * kPanel;
    left = packs_left(p.a) ? rounded_up(rows, kLeftPanel) * depth.part : 0;
    sums = depth.parts > 1 ? rounded_up(rows, kTileRows) * std::min(rounded_up(p.columns, kPanel), kBlockColumns) : 0;
  }
};

/// Goes through a product: some columns, some of their rows, a part of the inner dimension, a panel.
class Multiplier {
 public:
  Multiplier(const Bf16Gemm& product, const Bf16GemmOutput& out, void* scratch)
      : p_(product), out_(out), depth_(product.inner), words_(product), panel_(static_cast<std::uint32_t*>(scratch)) {}

  void multiply() {
    for_ranges({0, p_.columns}, depth_.parts > 1 ? kBlockColumns : p_.columns, [&](const Range& columns) {
      for_ranges({0, p_.rows}, kBlockRows, [&](const Range& rows) {
        for_ranges({0, p_.inner}, 2 * depth_.part, [&](const Range& inner) { multiply(rows, columns, inner); });
      });
    });
  }

 private:
  void multiply(const Range& rows, const Range& columns, const Range& inner) {
    const Left a = left(rows, inner), u{p_.u.at + rows.begin * p_.u.row, p_.u.row, p_.rank / 2, false};
    auto* sums = reinterpret_cast<float*>(left_at() + words_.left);
    for_ranges(columns, kPanel, [&](const Range& panel) {
      const Tile t = packed(panel, inner);
      auto* earlier = sums + (panel.begin - columns.begin) * rounded_up(rows.size(), kTileRows);
      const auto ahead = after(panel, columns, inner);
      switch ((panel.size() + kFloats - 1) / kFloats) {
        case 1:
          return column_of_tiles<1>(t, a, u, earlier, rows, ahead);
        case 2:
          return column_of_tiles<2>(t, a, u, earlier, rows, ahead);
        case 3:
          return column_of_tiles<3>(t, a, u, earlier, rows, ahead);
        default:
          return column_of_tiles<4>(t, a, u, earlier, rows, ahead);
      }
    });
  }

  std::uint32_t* ranks_at() const { return panel_ + words_.panel; }
  std::uint32_t* left_at() const { return ranks_at() + words_.ranks; }

  Left left(const Range& rows, const Range& inner) const {
    const auto* from = p_.a.at + rows.begin * p_.a.row + inner.begin * p_.a.column;
    const std::int64_t pairs = (inner.size() + 1) / 2;
    if (!packs_left(p_.a)) return {from, p_.a.row, pairs, false};
    for_ranges({0, rows.size()}, kLeftPanel, [&](const Range& few) {
      pack_vnni(from + few.begin, p_.a.column, inner.size(), few.size(), left_at() + few.begin * pairs, kLeftPanel);
    });
    return {reinterpret_cast<const std::uint16_t*>(left_at()), 0, pairs, true};
  }

  Tile packed(const Range& panel, const Range& inner) const {
    const bool last = inner.end == p_.inner;
    pack_second(p_, inner, panel, panel_);
    if (last && p_.rank > 0) pack(p_.v, {0, p_.rank}, panel, ranks_at());
    auto out = out_;
    out.at += panel.begin;
    return {panel_,
            ranks_at(),
            (inner.size() + 1) / 2,
            p_.rank / 2,
            inner.begin == 0,
            last,
            first_lanes((panel.size() - 1) % kFloats + 1),
            out};
  }

  /// What is packed next.
  Prefetch after(const Range& panel, const Range& columns, const Range& inner) const {
    if (panel.end < columns.end) return ahead_of(p_, inner, {panel.end, std::min(columns.end, panel.end + kPanel)});
    if (inner.end == p_.inner) return {};
    return ahead_of(p_, {inner.end, std::min(p_.inner, inner.end + 2 * depth_.part)},
                    {columns.begin, std::min(columns.end, columns.begin + kPanel)});
  }

  const Bf16Gemm& p_;
  const Bf16GemmOutput& out_;
  const Depth depth_;
  const Scratch words_;
  std::uint32_t* panel_;
};

}  // namespace

bool has_bf16_gemm() {
  return cpu_level() == CpuLevel::kAvx512Bf16;
}

std::size_t bf16_gemm_scratch_bytes(const Bf16Gemm& product) {
  const Scratch words(product);
  return static_cast<std::size_t>(words.panel + words.ranks + words.left + words.sums) * sizeof(std::uint32_t);
}

void bf16_gemm(const Bf16Gemm& product, const Bf16GemmOutput& out, void* scratch) {
  Multiplier(product, out, scratch).multiply();
}

}  // namespace tessera::nn::kernels

#else

namespace tessera::nn::kernels {

bool has_bf16_gemm() {
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
