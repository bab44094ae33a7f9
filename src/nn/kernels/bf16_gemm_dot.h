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

  /// 32-bit words of scratch memory: the panel, that of v, the packed rows, results that are to be turned.
  static std::int64_t words(const Bf16Gemm& p, const Depth& depth) {
    return (depth.part + p.rank / 2) * kPanelColumns + left_words(p, depth) + kTurnedRows * kPanelColumns;
  }

  DotTiles(const Bf16Gemm& product, const Bf16GemmOutput& out, const Depth& depth, std::uint32_t* scratch)
      : p_(product),
        out_(out),
        panel_(scratch),
        ranks_(panel_ + depth.part * kPanelColumns),
        left_(ranks_ + p_.rank / 2 * kPanelColumns),
        turned_(left_ + left_words(product, depth)) {}

  /// earlier: sums of earlier parts of the inner dimension, rows kPanelColumns apart.
  void multiply(const Place& now, const std::optional<Place>& next, float* earlier) {
    if (now.panel.begin == now.columns.begin) take_rows(now.rows, now.inner);
    const bool last = now.inner.end == p_.inner;
    pack_second(p_, now.inner, now.panel, panel_);
    if (last && p_.rank > 0) pack_panel(p_.v, {0, p_.rank}, now.panel, ranks_);
    auto out = out_;
    out.at += now.panel.begin * (out.turned ? out.stride : 1);
    const Tile t{panel_,
                 ranks_,
                 now.inner.pairs(),
                 p_.rank / 2,
                 now.inner.begin == 0,
                 last,
                 first_lanes((now.panel.size() - 1) % kFloats + 1),
                 out.turned ? Bf16GemmOutput{results(), kPanelColumns, false, out.alpha} : out};
    const auto ahead = next ? ahead_of(p_, next->inner, next->panel) : Prefetch();
    switch ((now.panel.size() + kFloats - 1) / kFloats) {
      case 1:
        return column_of_tiles<1>(t, now, out, earlier, ahead);
      case 2:
        return column_of_tiles<2>(t, now, out, earlier, ahead);
      case 3:
        return column_of_tiles<3>(t, now, out, earlier, ahead);
      default:
        return column_of_tiles<4>(t, now, out, earlier, ahead);
    }
  }

 private:
  static constexpr std::int64_t kLeftPanel = 48;   // rows that are packed together: whole tiles, whole cache lines
  static constexpr std::int64_t kTurnedRows = 96;  // rows whose results are turned together: whole tiles and vectors

  static bool packs_left(const Bfloat16Matrix& a) { return a.column != 1; }
  static std::int64_t left_words(const Bf16Gemm& p, const Depth& depth) {
    return packs_left(p.a) ? rounded_up(std::min(p.rows, block(p).rows), kLeftPanel) * depth.part : 0;
  }

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

  /// All rows of a block against one panel. t writes to `out`, or where results wait to be turned.
  template <int Columns>
  TESSERA_BF16_DOT void column_of_tiles(const Tile& t, const Place& now, const Bf16GemmOutput& out, float* earlier,
                                        Prefetch ahead) const {
    const std::int64_t rows = now.rows.size(), tiles = (rows + kRows - 1) / kRows;
    const std::int64_t lines = (ahead.lines() + tiles - 1) / tiles;
    for (std::int64_t m = 0, begin = 0; m < rows; begin = m) {
      const std::int64_t end = out.turned ? std::min(rows, begin + kTurnedRows) : rows;
      const std::int64_t to = out.turned ? -begin : now.rows.begin;
      for (; m + kRows <= end; m += kRows) {
        ahead.fetch(lines);
        tile<kRows, Columns>(t, a_.from(m), u_.from(m), earlier + m * kPanelColumns, to + m);
      }
      if (m < end)
        last_tile<kRows - 1, Columns>(end - m, t, a_.from(m), u_.from(m), earlier + m * kPanelColumns, to + m);
      m = end;
      if (out.turned && t.last) turn(end - begin, now.panel.size(), out, now.rows.begin + begin);
    }
  }

  std::uint16_t* results() const { return reinterpret_cast<std::uint16_t*>(turned_); }

  /// The results of `rows` rows, from row `first` on, become columns.
  TESSERA_BF16_DOT void turn(std::int64_t rows, std::int64_t columns, const Bf16GemmOutput& out,
                             std::int64_t first) const {
    auto* pairs = turned_ + kTurnedRows * kPanelColumns / 2;  // of columns, kTurnedRows apart
    pack_vnni_transposed(results(), kPanelColumns, rows, kPanelColumns, pairs, kTurnedRows);
    // Which halves of 32 words: the low ones, the high ones.
    static const struct Halves {
      alignas(64) std::uint16_t of[2][kBfloat16s];
      Halves() {
        for (int i = 0; i < 2 * kBfloat16s; ++i) of[i % 2][i / 2] = static_cast<std::uint16_t>(i);
      }
    } halves;
    const __m512i of_pair[2] = {_mm512_load_si512(halves.of[0]), _mm512_load_si512(halves.of[1])};
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto* from = pairs + c / 2 * kTurnedRows;
      auto* to = out.at + c * out.stride + first;
      for (std::int64_t r = 0; r < rows; r += kBfloat16s) {
        const auto column = _mm512_permutex2var_epi16(_mm512_loadu_si512(from + r), of_pair[c % 2],
                                                      _mm512_loadu_si512(from + r + kFloats));
        _mm512_mask_storeu_epi16(to + r, rows - r >= kBfloat16s ? ~__mmask32{0} : (__mmask32{1} << (rows - r)) - 1,
                                 column);
      }
    }
  }

  const Bf16Gemm& p_;
  const Bf16GemmOutput& out_;
  std::uint32_t *panel_, *ranks_, *left_, *turned_;
  Left a_{}, u_{};
};

}  // namespace tessera::nn::kernels
#endif
