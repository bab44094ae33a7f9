#pragma once
// The order in which bf16_gemm.cc goes through a product, for the loops that multiply: bf16_gemm_dot.h and
// bf16_gemm_amx.h.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_gemm.h"

namespace tessera::nn::kernels {

constexpr std::int64_t kLinePairs = 16;  // in a cache line

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
  std::int64_t pairs() const { return (size() + 1) / 2; }
};

/// The first `size` of a range from `begin` on that ends at `end`.
inline Range range_from(std::int64_t begin, std::int64_t size, std::int64_t end) {
  return {begin, std::min(end, begin + size)};
}

/// body(range) over [begin, end) in steps.
template <class Body>
void for_ranges(const Range& all, std::int64_t step, const Body& body) {
  for (std::int64_t i = all.begin; i < all.end; i += step) body(range_from(i, step, all.end));
}

/// The inner dimension in equal parts of at most so many pairs, whole cache lines; a few more may be the only part.
struct Depth {
  std::int64_t parts, part;
  Depth(std::int64_t inner, std::int64_t most, std::int64_t most_alone) {
    const std::int64_t pairs = (inner + 1) / 2;
    parts = pairs <= most_alone ? 1 : (pairs + most - 1) / most;
    part = rounded_up((pairs + parts - 1) / parts, kLinePairs);
  }
};

/// What is multiplied together: at most so many rows and columns (all columns, where the inner dimension is one part),
/// and so many columns at a time.
struct BlockSizes {
  std::int64_t rows, columns, panel;
};

/// A panel of the second factor and the rows that it is multiplied by: `rows` and `columns` are a block, `inner` a part
/// of the inner dimension, `panel` some of the columns.
struct Place {
  Range rows, columns, inner, panel;
};

/// Some rows, some columns of theirs, a part of the inner dimension, a panel.
class Order {
 public:
  Order(const Bf16Gemm& p, const Depth& depth, const BlockSizes& sizes)
      : rows_(p.rows),
        columns_(p.columns),
        inner_(p.inner),
        sizes_{sizes.rows, depth.parts > 1 ? sizes.columns : p.columns, sizes.panel},
        part_(2 * depth.part) {}

  Place first() const { return at(0, 0, 0, 0); }
  std::optional<Place> after(const Place& p) const {
    if (p.panel.end < p.columns.end) return at(p.rows.begin, p.columns.begin, p.inner.begin, p.panel.end);
    if (p.inner.end < inner_) return at(p.rows.begin, p.columns.begin, p.inner.end, p.columns.begin);
    if (p.columns.end < columns_) return at(p.rows.begin, p.columns.end, 0, p.columns.end);
    if (p.rows.end < rows_) return at(p.rows.end, 0, 0, 0);
    return {};
  }

 private:
  Place at(std::int64_t row, std::int64_t block, std::int64_t inner, std::int64_t column) const {
    const auto columns = range_from(block, sizes_.columns, columns_);
    return {range_from(row, sizes_.rows, rows_), columns, range_from(inner, part_, inner_),
            range_from(column, sizes_.panel, columns.end)};
  }

  std::int64_t rows_, columns_, inner_;
  BlockSizes sizes_;
  std::int64_t part_;
};

/// Some of b [inner, columns] in the VNNI layout: [pairs, kPanelColumns].
inline void pack_panel(const Bfloat16Matrix& b, const Range& inner, const Range& columns, std::uint32_t* out) {
  const auto* x = b.at + inner.begin * b.row + columns.begin * b.column;
  if (b.column == 1)
    pack_vnni(x, b.row, inner.size(), columns.size(), out, kPanelColumns);
  else
    pack_vnni_transposed(x, b.column, columns.size(), inner.size(), out, kPanelColumns);
}

inline PanelPart part_of(const Bf16Gemm& p, const Range& inner, const Range& columns) {
  return {inner.begin, inner.size(), p.first_column + columns.begin, columns.size()};
}

/// Of the product's second factor.
inline void pack_second(const Bf16Gemm& p, const Range& inner, const Range& columns, std::uint32_t* out) {
  if (p.factor == nullptr) return pack_panel(p.b, inner, columns, out);
  p.factor->pack(part_of(p, inner, columns), out);
}

/// What pack_second() will read.
inline Prefetch ahead_of(const Bf16Gemm& p, const Range& inner, const Range& columns) {
  if (p.factor != nullptr) return Prefetch(p.factor->memory(part_of(p, inner, columns)));
  const auto& b = p.b;
  const auto* at = b.at + inner.begin * b.row + columns.begin * b.column;
  if (b.column == 1) return Prefetch({at, inner.size(), columns.size() * 2, b.row * 2});
  return Prefetch({at, columns.size(), inner.size() * 2, b.column * 2});
}

}  // namespace tessera::nn::kernels
