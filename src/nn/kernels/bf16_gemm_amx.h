#pragma once
// Panels of bf16_gemm.cc by AMX: 32 rows by 32 columns are summed at a time, for a part of the inner dimension.
#if defined(__x86_64__)
#include "nn/kernels/amx_tiles.h"
#include "nn/kernels/bf16_dot_tiles.h"
#include "nn/kernels/bf16_gemm_parts.h"
#include "nn/kernels/bf16_tiles.h"

namespace tessera::nn::kernels {

/// The first factor is always packed: its tiles one after the other, those of 16 rows along the inner dimension first.
/// A part's last tiles are filled up with zeros, as the panel is. u and v are further pairs of the last part.
class AmxTiles {
 public:
  static constexpr std::int64_t kRows = 32;
  static constexpr std::int64_t kBlockRows = 512, kBlockColumns = 512;

  /// 32-bit words of scratch memory: the panel, the sums of a block, the packed rows.
  static std::int64_t words(const Bf16Gemm& p, const Depth& depth) {
    const auto pairs = depth.part * (keeps_all(p, depth) ? depth.parts : 1) + rank_pairs(p);
    return panel_words(p, depth) + kRows * kPanelColumns + block_rows(p) * pairs;
  }

  AmxTiles(const Bf16Gemm& product, const Bf16GemmOutput& out, const Depth& depth, std::uint32_t* scratch)
      : p_(product),
        out_(out),
        keeps_all_(keeps_all(product, depth)),
        panel_(scratch),
        sums_(reinterpret_cast<float*>(panel_ + panel_words(product, depth))),
        rows_(reinterpret_cast<std::uint32_t*>(sums_ + kRows * kPanelColumns)) {}

  /// earlier: sums of earlier parts of the inner dimension, rows kPanelColumns apart.
  void multiply(const Place& now, const std::optional<Place>& next, float* earlier) {
    if (now.panel.begin == now.columns.begin) take_rows(now);
    pack_second(p_, now.inner, now.panel, panel_);
    auto* end = fill_up(panel_, now.inner.pairs());
    if (now.inner.end == p_.inner && p_.rank > 0) {
      pack_panel(p_.v, {0, p_.rank}, now.panel, end);
      fill_up(end, p_.rank / 2);
    }
    all_rows(now, earlier, next ? ahead_of(p_, next->inner, next->panel) : Prefetch());
  }

 private:
  static constexpr std::int64_t kMostWords = 1 << 20;  // of packed rows: for all parts of the inner dimension, or one

  struct Size {
    std::int64_t rows, inner;
  };

  static std::int64_t rank_pairs(const Bf16Gemm& p) { return rounded_up(p.rank / 2, kTile); }
  static std::int64_t panel_words(const Bf16Gemm& p, const Depth& depth) {
    return (depth.part + rank_pairs(p)) * kPanelColumns;
  }
  static std::int64_t block_rows(const Bf16Gemm& p) { return rounded_up(std::min(p.rows, kBlockRows), kTile); }
  static bool keeps_all(const Bf16Gemm& p, const Depth& depth) {
    return block_rows(p) * depth.part * depth.parts <= kMostWords;
  }

  /// Zeros up to whole tiles of pairs; where they end.
  static std::uint32_t* fill_up(std::uint32_t* panel, std::int64_t pairs) {
    auto* end = panel + rounded_up(pairs, kTile) * kPanelColumns;
    std::fill(panel + pairs * kPanelColumns, end, 0u);
    return end;
  }

  /// The rows that are multiplied from now on, unless they are packed.
  void take_rows(const Place& now) {
    const auto& [rows, columns, inner, panel] = now;
    const bool last = inner.end == p_.inner;
    pairs_ = rounded_up(inner.pairs(), kTile) + (last ? rank_pairs(p_) : 0);
    at_ = rows_ + (keeps_all_ ? rounded_up(rows.size(), kTile) * inner.begin / 2 : 0);
    if (keeps_all_ && columns.begin > 0) return;
    const auto* from = p_.a.at + rows.begin * p_.a.row + inner.begin * p_.a.column;
    if (p_.a.column == 1)
      pack_rows(from, p_.a.row, {rows.size(), inner.size()}, at_);
    else
      pack_columns(from, p_.a.column, {rows.size(), inner.size()}, at_);
    if (last && p_.rank > 0)
      pack_rows(p_.u.at + rows.begin * p_.u.row, p_.u.row, {rows.size(), p_.rank},
                at_ + rounded_up(inner.pairs(), kTile) * kTile);
  }

  /// Row r of the tiles that begin at `out`.
  std::uint32_t* tile_row(std::uint32_t* out, std::int64_t r) const {
    return out + (r / kTile * pairs_ + r % kTile) * kTile;
  }

  /// x [rows, inner].
  TESSERA_AMX void pack_rows(const std::uint16_t* x, std::int64_t stride, const Size& size, std::uint32_t* out) const {
    const std::int64_t whole = size.inner / kBfloat16s;
    const auto rest = (__mmask32{1} << size.inner % kBfloat16s) - 1;
    for (std::int64_t r = 0; r < size.rows; ++r, x += stride) {
      auto* to = tile_row(out, r);
      for (std::int64_t k = 0; k < whole; ++k, to += kTileWords)
        _mm512_storeu_si512(to, _mm512_loadu_si512(x + k * kBfloat16s));
      if (rest != 0) _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(rest, x + whole * kBfloat16s));
    }
  }

  /// The transpose of x [inner, rows].
  void pack_columns(const std::uint16_t* x, std::int64_t stride, const Size& size, std::uint32_t* out) const {
    constexpr std::int64_t kFew = 64;  // rows: two cache lines of x
    alignas(64) std::uint32_t pairs[kTile * kFew];
    for_ranges({0, size.inner}, 2 * kTile, [&](const Range& inner) {
      for_ranges({0, size.rows}, kFew, [&](const Range& rows) {
        pack_vnni(x + inner.begin * stride + rows.begin, stride, inner.size(), rows.size(), pairs, kFew);
        for_ranges({0, rows.size()}, kTile, [&](const Range& few) {
          pack_vnni_transposed(reinterpret_cast<const std::uint16_t*>(pairs + few.begin), 2 * kFew, inner.pairs(),
                               2 * few.size(), tile_row(out, rows.begin + few.begin) + inner.begin / 2 * kTile, kTile);
        });
      });
    });
  }

  TESSERA_AMX void all_rows(const Place& now, float* earlier, Prefetch ahead) const {
    written(panel_);
    const std::int64_t rows = now.rows.size(), columns = now.panel.size(), blocks = (rows + kRows - 1) / kRows;
    const std::int64_t lines = (ahead.lines() + blocks - 1) / blocks;
    const bool first = now.inner.begin == 0, last = now.inner.end == p_.inner;
    for (std::int64_t row = 0; row < rows; row += kRows) {
      ahead.fetch(lines);
      const auto* a = at_ + row * pairs_;
      float* sums = first && last ? sums_ : earlier + row * kPanelColumns;
      for (std::int64_t column = 0; column < columns; column += 2 * kTile) {
        multiply_tiles({a, kTile, pairs_ * kTile, kTileWords, panel_ + column, kPanelColumns, sums + column,
                        kPanelColumns, pairs_, !first},
                       rows - row, columns - column);
      }
      if (last) put_rows(now, {row, std::min(rows, row + kRows)}, sums);
    }
  }

  TESSERA_AMX void put_rows(const Place& now, const Range& rows, const float* sums) const {
    const auto columns = now.panel.size();
    for (std::int64_t r = rows.begin; r < rows.end; ++r, sums += kPanelColumns)
      for (std::int64_t n = 0; n < columns; n += kFloats)
        put(out_, (now.rows.begin + r) * out_.stride + now.panel.begin + n, first_lanes(columns - n),
            _mm512_loadu_ps(sums + n));
  }

  const TileScope scope_;
  const Bf16Gemm& p_;
  const Bf16GemmOutput& out_;
  bool keeps_all_;
  std::uint32_t* panel_;
  float* sums_;                          // of kRows rows of a panel
  std::uint32_t *rows_, *at_ = nullptr;  // packed rows: all of them, of this part
  std::int64_t pairs_ = 0;               // of this part, whole tiles
};

}  // namespace tessera::nn::kernels
#endif
