#pragma once
// Blocks of bf16_gemm.cc by AMX: 32 rows of the first factor stay in the first cache while a packed block of the second
// one passes by, 32 columns at a time. What is fetched for later, and sums that are finished, go their way meanwhile.
#if defined(__x86_64__)
#include <algorithm>
#include <utility>

#include "nn/kernels/amx_tiles.h"
#include "nn/kernels/bf16_dot_tiles.h"
#include "nn/kernels/bf16_gemm_parts.h"
#include "nn/kernels/bf16_tiles.h"

namespace tessera::nn::kernels {

/// A part's last tiles are filled up with zeros, as the block is. u and v are further pairs of the last part.
class AmxTiles {
 public:
  static constexpr std::int64_t kRows = 32;
  /// For few rows smaller blocks, as packing them takes most of the time.
  static BlockSizes block(const Bf16Gemm& p) { return {512, 512, p.rows > 128 ? 512 : 256}; }
  /// 32 rows of a part are at most 40 KiB; those of 48 KiB gain less from the cache than they would lose by two parts.
  static Depth depth(std::int64_t inner) { return {inner, 320, 384}; }

  /// 32-bit words of scratch memory: the block, the sums of two products of 32 columns, packed rows.
  static std::int64_t words(const Bf16Gemm& p, const Depth& depth) {
    const auto rows = is_dense(p.a) ? kRows : rounded_up(std::min(p.rows, block(p).rows), kRows);
    return block_words(p, depth) + 2 * kSums + rows * (depth.part + rank_pairs(p));
  }

  AmxTiles(const Bf16Gemm& product, const Bf16GemmOutput& out, const Depth& depth, std::uint32_t* scratch)
      : p_(product),
        out_(out),
        block_(scratch),
        sums_(reinterpret_cast<float*>(block_ + block_words(product, depth))),
        rows_(reinterpret_cast<std::uint32_t*>(sums_ + 2 * kSums)) {}

  /// earlier: sums of earlier parts of the inner dimension, those of 32 rows and 32 columns together.
  void multiply(const Place& now, const std::optional<Place>& next, float* earlier) {
    const bool last = now.inner.end == p_.inner;
    pairs_ = rounded_up(now.inner.pairs(), kTile) + (last ? rank_pairs(p_) : 0);
    auto* panel = block_;
    for_ranges(now.panel, kPanelColumns, [&](const Range& columns) {
      pack_second(p_, now.inner, columns, panel);
      panel = fill_up(panel, now.inner.pairs());
      if (!last || p_.rank == 0) return;
      pack_panel(p_.v, {0, p_.rank}, columns, panel);
      panel = fill_up(panel, p_.rank / 2);
    });
    all_rows(now, earlier, next ? ahead_of(p_, next->inner, next->panel) : Prefetch());
  }

 private:
  static constexpr std::int64_t kSums = 4 * kTileWords;  // tile after tile

  struct Size {
    std::int64_t rows, inner;
  };

  static bool is_dense(const Bfloat16Matrix& a) { return a.column == 1; }
  static std::int64_t rank_pairs(const Bf16Gemm& p) { return rounded_up(p.rank / 2, kTile); }
  static std::int64_t block_words(const Bf16Gemm& p, const Depth& depth) {
    return (depth.part + rank_pairs(p)) * std::min(block(p).panel, rounded_up(p.columns, kPanelColumns));
  }

  /// Zeros up to whole tiles of pairs; where they end.
  static std::uint32_t* fill_up(std::uint32_t* panel, std::int64_t pairs) {
    auto* end = panel + rounded_up(pairs, kTile) * kPanelColumns;
    std::fill(panel + pairs * kPanelColumns, end, 0u);
    return end;
  }

  /// Rows of the first factor that a tile reads where they stand: whole words apart, and not multiples of 2 KiB, which
  /// share a few places of the first cache.
  bool stand_well() const { return is_dense(p_.a) && p_.a.row % 2 == 0 && p_.a.row % 1024 != 0; }

  /// Up to 32 rows of the first factor: as they stand, and what follows its whole tiles of pairs packed; or all packed.
  TESSERA_AMX_INLINE void take_rows(const Place& now, const Range& rows, TileProduct& product) const {
    const auto& inner = now.inner;
    const bool last = inner.end == p_.inner, dense = is_dense(p_.a);
    const auto* from = p_.a.at + rows.begin * p_.a.row + inner.begin * p_.a.column;
    const bool in_place = stand_well() && rows.size() % kTile == 0;
    const std::int64_t whole = in_place ? inner.size() / (2 * kTile) * kTile : 0, rest = pairs_ - whole;
    auto* packed = rows_ + (dense ? 0 : (rows.begin - now.rows.begin) * pairs_);
    if (dense || now.panel.begin == now.columns.begin) {
      if (dense)
        pack_rows(from + 2 * whole, p_.a.row, {rows.size(), inner.size() - 2 * whole}, packed, rest);
      else
        pack_columns(from, p_.a.column, {rows.size(), inner.size()}, packed);
      if (last && p_.rank > 0)
        pack_rows(p_.u.at + rows.begin * p_.u.row, p_.u.row, {rows.size(), p_.rank},
                  packed + (rounded_up(inner.pairs(), kTile) - whole) * kTile, rest);
      written(packed);
    }
    const std::int64_t row = p_.a.row / 2;
    product.more = {packed, kTile, rest * kTile, kTileWords, rest};
    product.a = {reinterpret_cast<const std::uint32_t*>(from), row, row * kTile, kTile, whole};
    if (whole == 0) std::swap(product.a, product.more);
  }

  Prefetch rows_ahead(const Range& rows, const Range& inner) const {
    const auto* from = p_.a.at + rows.begin * p_.a.row + inner.begin * p_.a.column;
    if (is_dense(p_.a)) return Prefetch({from, rows.size(), inner.size() * 2, p_.a.row * 2});
    return Prefetch({from, inner.size(), rows.size() * 2, p_.a.column * 2});
  }

  /// Row r of tiles that begin at `out` and have so many pairs.
  static std::uint32_t* tile_row(std::uint32_t* out, std::int64_t r, std::int64_t pairs) {
    return out + (r / kTile * pairs + r % kTile) * kTile;
  }

  /// x [rows, inner].
  TESSERA_AMX static void pack_rows(const std::uint16_t* x, std::int64_t stride, const Size& size, std::uint32_t* out,
                                    std::int64_t pairs) {
    constexpr std::int64_t kAhead = 2;  // rows
    const std::int64_t whole = size.inner / kBfloat16s;
    const auto rest = (__mmask32{1} << size.inner % kBfloat16s) - 1;
    for (std::int64_t r = 0; r < size.rows; ++r, x += stride) {
      auto *to = tile_row(out, r, pairs), *later = tile_row(out, std::min(r + kAhead, size.rows - 1), pairs);
      for (std::int64_t k = 0; k < whole; ++k, later += kTileWords) __builtin_prefetch(later, 1, 3);
      for (std::int64_t k = 0; k < whole; ++k, to += kTileWords)
        _mm512_storeu_si512(to, _mm512_loadu_si512(x + k * kBfloat16s));
      if (rest != 0) _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(rest, x + whole * kBfloat16s));
    }
  }

  /// The transpose of x [inner, rows].
  void pack_columns(const std::uint16_t* x, std::int64_t stride, const Size& size, std::uint32_t* out) const {
    alignas(64) std::uint32_t pairs[kTile * kRows];
    for_ranges({0, size.inner}, 2 * kTile, [&](const Range& inner) {
      pack_vnni(x + inner.begin * stride, stride, inner.size(), size.rows, pairs, kRows);
      for_ranges({0, size.rows}, kTile, [&](const Range& few) {
        pack_vnni_transposed(reinterpret_cast<const std::uint16_t*>(pairs + few.begin), 2 * kRows, inner.pairs(),
                             2 * few.size(), tile_row(out, few.begin, pairs_) + inner.begin / 2 * kTile, kTile);
      });
    });
  }

  /// What is done between products of tiles.
  struct Meanwhile {
    const Bf16GemmOutput& out;
    Prefetch block, rows;
    std::int64_t block_lines, rows_lines, rows_put;  // each time
    const float* sums = nullptr;                     // finished ones
    std::uint16_t* to = nullptr;
    std::int64_t row = 0, end = 0, columns = 0;
    const std::uint16_t* next = nullptr;  // where sums will go, and so many rows of it
    std::int64_t next_rows = 0;

    TESSERA_AMX_INLINE void operator()() {
      block.fetch(block_lines);
      rows.fetch(rows_lines);
      put(rows_put);
      for (std::int64_t n = rows_put; n > 0 && next_rows > 0; --n, --next_rows, next += out.stride)
        __builtin_prefetch(next, 1, 3);
    }

    TESSERA_AMX_INLINE void put(std::int64_t count) {
      for (; count > 0 && row < end; --count, ++row, to += out.stride) {
        const float *left = sums + (row / kTile * 2 * kTileWords + row % kTile * kTile), *right = left + kTileWords;
        if (columns == 2 * kTile && !out.add) {
          const auto alpha = _mm512_set1_ps(out.alpha);
          const auto a = _mm512_mul_ps(_mm512_loadu_ps(left), alpha), b = _mm512_mul_ps(_mm512_loadu_ps(right), alpha);
          _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(b, a));
          continue;
        }
        const Bf16GemmOutput here{to, out.stride, out.add, out.alpha};
        kernels::put(here, 0, first_lanes(columns), _mm512_loadu_ps(left));
        if (columns > kTile) kernels::put(here, kTile, first_lanes(columns - kTile), _mm512_loadu_ps(right));
      }
    }
  };

  TESSERA_AMX void all_rows(const Place& now, float* earlier, const Prefetch& ahead) const {
    written(block_);
    const std::int64_t rows = now.rows.size(), columns = now.panel.size();
    const std::int64_t products = (columns + 2 * kTile - 1) / (2 * kTile), times = products * (pairs_ / kTile);
    const std::int64_t all_times = (rows + kRows - 1) / kRows * times;
    const bool first = now.inner.begin == 0, last = now.inner.end == p_.inner;
    Meanwhile meanwhile{
        out_, ahead, {}, (ahead.lines() + all_times - 1) / all_times, 0, (kRows * kTile + pairs_ - 1) / pairs_};
    TileProduct product{{}, {}, nullptr, kPanelColumns, {sums_, kTile, kTileWords, 2 * kTileWords}, !first};
    for (std::int64_t row = 0; row < rows; row += kRows) {
      const auto strip = range_from(now.rows.begin + row, kRows, now.rows.end);
      take_rows(now, strip, product);
      if (strip.end < now.rows.end) {
        meanwhile.rows = rows_ahead(range_from(strip.end, kRows, now.rows.end), now.inner);
        meanwhile.rows_lines = (meanwhile.rows.lines() + times - 1) / times;
      }
      for (std::int64_t column = 0; column < columns; column += 2 * kTile) {
        product.b = block_ + column / kPanelColumns * pairs_ * kPanelColumns + column % kPanelColumns;
        if (first && last)
          product.sums.at = product.sums.at == sums_ ? sums_ + kSums : sums_;
        else
          product.sums.at = earlier, earlier += kSums;
        auto* to = out_.at + strip.begin * out_.stride + now.panel.begin + column;
        meanwhile.next = to, meanwhile.next_rows = last ? strip.size() : 0;
        multiply_tiles<TileReads::kOnce>(product, rows - row, columns - column, meanwhile);
        if (!last) continue;
        meanwhile.put(kRows);
        meanwhile.sums = product.sums.at, meanwhile.to = to;
        meanwhile.row = 0, meanwhile.end = strip.size(), meanwhile.columns = std::min(2 * kTile, columns - column);
      }
    }
    meanwhile.put(kRows);
  }

  const TileScope scope_;
  const Bf16Gemm& p_;
  const Bf16GemmOutput& out_;
  std::uint32_t* block_;
  float* sums_;             // of two products
  std::uint32_t* rows_;     // packed: of 32 rows, of a transposed factor's block
  std::int64_t pairs_ = 0;  // of this part, whole tiles
};

}  // namespace tessera::nn::kernels
#endif
