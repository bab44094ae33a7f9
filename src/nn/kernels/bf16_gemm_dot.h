#pragma once
// Panels of bf16_gemm.cc by the dot-product instruction of bf16_dot.h: a tile of 6 rows by 64 columns stays in
// registers.
#if defined(__x86_64__)
#include "nn/kernels/bf16_dot_tiles.h"
#include "nn/kernels/bf16_gemm_parts.h"

namespace tessera::nn::kernels {

class DotTiles {
 public:
  static constexpr std::int64_t kRows = 6;  // 24 sums, 4 vectors of columns and a pair of rows: 29 of 32 registers
  static BlockSizes block(const Bf16Gemm&) { return {768, 512, kPanelColumns}; }
  /// Parts of which a panel is 128 KiB, in the second cache.
  static Depth depth(std::int64_t inner) { return {inner, 512, 512}; }

  /// 32-bit words of scratch memory: the panel, that of v, the packed rows.
  static std::int64_t words(const Bf16Gemm& p, const Depth& depth) {
    const auto rows = packs_left(p.a) ? rounded_up(std::min(p.rows, block(p).rows), kLeftPanel) : 0;
    return (depth.part + p.rank / 2) * kPanelColumns + rows * depth.part;
  }

  DotTiles(const Bf16Gemm& product, const Bf16GemmOutput& out, const Depth& depth, std::uint32_t* scratch)
      : p_(product),
        out_(out),
        panel_(scratch),
        ranks_(panel_ + depth.part * kPanelColumns),
        left_(ranks_ + p_.rank / 2 * kPanelColumns) {}

  /// earlier: sums of earlier parts of the inner dimension, rows kPanelColumns apart.
  void multiply(const Place& now, const std::optional<Place>& next, float* earlier) {
    if (now.panel.begin == now.columns.begin) take_rows(now.rows, now.inner);
    const bool last = now.inner.end == p_.inner;
    pack_second(p_, now.inner, now.panel, panel_);
    if (last && p_.rank > 0) pack_panel(p_.v, {0, p_.rank}, now.panel, ranks_);
    auto out = out_;
    out.at += now.panel.begin;
    const Tile t{panel_,
                 ranks_,
                 now.inner.pairs(),
                 p_.rank / 2,
                 now.inner.begin == 0,
                 last,
                 first_lanes((now.panel.size() - 1) % kFloats + 1),
                 out};
    const auto ahead = next ? ahead_of(p_, next->inner, next->panel) : Prefetch();
    switch ((now.panel.size() + kFloats - 1) / kFloats) {
      case 1:
        return column_of_tiles<1>(t, now.rows, earlier, ahead);
      case 2:
        return column_of_tiles<2>(t, now.rows, earlier, ahead);
      case 3:
        return column_of_tiles<3>(t, now.rows, earlier, ahead);
      default:
        return column_of_tiles<4>(t, now.rows, earlier, ahead);
    }
  }

 private:
  static constexpr std::int64_t kLeftPanel = 48;  // rows that are packed together: whole tiles, whole cache lines

  static bool packs_left(const Bfloat16Matrix& a) { return a.column != 1; }

  void take_rows(const Range& rows, const Range& inner) {
    const auto* from = p_.a.at + rows.begin * p_.a.row + inner.begin * p_.a.column;
    u_ = {p_.u.at + rows.begin * p_.u.row, p_.u.row, p_.rank / 2, false};
    a_ = {from, p_.a.row, inner.pairs(), false};
    if (!packs_left(p_.a)) return;
    for_ranges({0, rows.size()}, kLeftPanel, [&](const Range& few) {
      pack_vnni(from + few.begin, p_.a.column, inner.size(), few.size(), left_ + few.begin * inner.pairs(), kLeftPanel);
    });
    a_ = {reinterpret_cast<const std::uint16_t*>(left_), 0, inner.pairs(), true};
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

  /// What a tile needs beside its place.
  struct Tile {
    const std::uint32_t *b, *v;  // panels
    std::int64_t pairs, rank_pairs;
    bool first, last;
    __mmask16 tail;  // of the last vector of columns
    Bf16GemmOutput out;
  };

  template <int Rows, int Columns>
  TESSERA_BF16_DOT_INLINE static void tile(const Tile& t, const DotRows& a, const DotRows& u, float* earlier,
                                           std::int64_t row) {
    __m512 sums[Rows][Columns];
    load_sums(sums, !t.first, earlier, kPanelColumns);
    for (std::int64_t p = 0; p < t.pairs; p += kLinePairs) {
      const DotRows now{a.at + p * a.pair, a.row, a.pair};
#pragma GCC unroll 6
      for (int m = 0; m < Rows; ++m)
        _mm_prefetch(reinterpret_cast<const char*>(now.at + (Rows + m) * a.row), _MM_HINT_T0);
      add_dot_products(sums, now, {t.b + p * kPanelColumns, kPanelColumns}, std::min(kLinePairs, t.pairs - p));
    }
    if (!t.last) return store_sums(sums, earlier, kPanelColumns);
    add_dot_products(sums, u, {t.v, kPanelColumns}, t.rank_pairs);
#pragma GCC unroll 6
    for (int m = 0; m < Rows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < Columns; ++n)
        put(t.out, (row + m) * t.out.stride + n * kFloats, n + 1 == Columns ? t.tail : kAll, sums[m][n]);
  }

  template <int Rows, int Columns>
  TESSERA_BF16_DOT static void last_tile(std::int64_t rows, const Tile& t, const DotRows& a, const DotRows& u,
                                         float* earlier, std::int64_t row) {
    if (rows == Rows) return tile<Rows, Columns>(t, a, u, earlier, row);
    if constexpr (Rows > 1) last_tile<Rows - 1, Columns>(rows, t, a, u, earlier, row);
  }

  /// All rows of a block against one panel.
  template <int Columns>
  TESSERA_BF16_DOT void column_of_tiles(const Tile& t, const Range& block, float* earlier, Prefetch ahead) const {
    const std::int64_t rows = block.size(), first_row = block.begin;
    const std::int64_t tiles = (rows + kRows - 1) / kRows;
    const std::int64_t lines = (ahead.lines() + tiles - 1) / tiles;
    std::int64_t m = 0;
    for (; m + kRows <= rows; m += kRows) {
      ahead.fetch(lines);
      tile<kRows, Columns>(t, a_.from(m), u_.from(m), earlier + m * kPanelColumns, first_row + m);
    }
    if (m < rows)
      last_tile<kRows - 1, Columns>(rows - m, t, a_.from(m), u_.from(m), earlier + m * kPanelColumns, first_row + m);
  }

  const Bf16Gemm& p_;
  const Bf16GemmOutput& out_;
  std::uint32_t *panel_, *ranks_, *left_;
  Left a_{}, u_{};
};

}  // namespace tessera::nn::kernels
#endif
