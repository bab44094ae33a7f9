#pragma once
// Large matrix products of bfloat16 (as its bits) with sums in float32, by instructions that multiply pairs along the
// inner dimension (pair_products.h says whether there are). The second factor is packed 64 columns at a time, the next
// ones are fetched meanwhile, and each tile of 6 rows by 64 columns stays in registers for up to 1024 of the inner
// dimension: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008. An element's sum is
// added in an order that depends on the inner dimension alone.
#include <cstddef>
#include <cstdint>

namespace tessera::nn::kernels {

/// Whether large products belong here: this processor has the instructions, and no matrix unit, which a library uses
/// better.
bool multiplies_in_panels();

/// Element (i, j) stands at at[i * row + j * column]; one of the two strides is 1.
struct Bfloat16Matrix {
  const std::uint16_t* at;
  std::int64_t row, column;
};

/// a [rows, inner] b [inner, columns] + u [rows, rank] v [rank, columns]; no second product where rank is 0. Where the
/// elements of a row of a are beside each other, inner is even. u has such rows; rank is even.
struct PanelProduct {
  Bfloat16Matrix a, b, u, v;
  std::int64_t rows, columns, inner, rank;
};

/// The first of `rows` rows, `stride` elements apart; takes alpha * product, or that is added.
struct PanelOutput {
  std::uint16_t* at;
  std::int64_t stride;
  bool add;
  float alpha;
};

/// Memory that panel_product() writes on its way, at most 3.3 MiB beside 256 bytes for a rank.
std::size_t panel_scratch_bytes(const PanelProduct& product);

/// On one thread.
void panel_product(const PanelProduct& product, const PanelOutput& out, void* scratch);

}  // namespace tessera::nn::kernels
