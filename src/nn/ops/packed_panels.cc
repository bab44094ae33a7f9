#include "nn/ops/packed_panels.h"

#include <algorithm>
#include <array>

#include "nn/kernels/bf16_dot.h"

namespace tessera::nn {
namespace {

using kernels::kPanelColumns;
static_assert(kPanelColumns == tensor::kPanelStride);

constexpr std::int64_t kVector = 16;  // vnni_columns() counts in these

/// Pairs of rows: a tile of up to 64 columns, some rows at a time.
void pack_pairs_of_rows(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, std::uint32_t* out) {
  constexpr std::int64_t kRows = 32;
  alignas(64) std::array<float, kRows * kPanelColumns> values{};
  const auto columns = kernels::vnni_columns(tile.columns);
  for (std::int64_t begin = 0; begin < tile.rows; begin += kRows) {
    const auto rows = std::min(kRows, tile.rows - begin);
    matrix.codec->decode(matrix, {tile.row + begin, rows, tile.column, tile.columns}, values.data(), kPanelColumns);
    if (rows % 2 != 0) std::fill_n(values.data() + rows * kPanelColumns, kPanelColumns, 0.0f);
    for (std::int64_t r = 0; r < rows; r += 2, out += kPanelColumns) {
      const auto* even = values.data() + r * kPanelColumns;
      kernels::narrow_to_vnni(even, even + kPanelColumns, columns, out, nullptr, nullptr);
    }
  }
}

/// Pairs of columns: a tile of up to 64 rows, 16 of them and some columns at a time.
void pack_pairs_of_columns(const tensor::PackedMatrix& matrix, const tensor::PanelCodec* codec,
                           const tensor::MatrixTile& tile, std::uint32_t* out) {
  constexpr std::int64_t kColumns = 256;  // a large block
  alignas(64) std::array<float, kVector * kColumns> values{};
  alignas(64) std::array<std::uint16_t, kVector * kColumns> narrow{};
  for (std::int64_t row = 0; row < tile.rows; row += kVector) {
    const auto rows = std::min(kVector, tile.rows - row);
    for (std::int64_t begin = 0; begin < tile.columns; begin += kColumns) {
      const auto columns = std::min(kColumns, tile.columns - begin);
      const tensor::MatrixTile part{tile.row + row, rows, tile.column + begin, columns};
      if (codec == nullptr || !codec->decode_rows(matrix, part, narrow.data(), kColumns)) {
        matrix.codec->decode(matrix, part, values.data(), kColumns);
        if (columns % 2 != 0)
          for (std::int64_t r = 0; r < rows; ++r) values[static_cast<std::size_t>(r * kColumns + columns)] = 0;
        kernels::narrow_row(values.data(), narrow.data(), rows * kColumns);
      }
      kernels::pack_vnni_transposed(narrow.data(), kColumns, rows, (columns + 1) / 2 * 2,
                                    out + begin / 2 * kPanelColumns + row, kPanelColumns);
    }
  }
}

}  // namespace

kernels::MemoryRows memory_of(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile) {
  const auto& codes = matrix.fields.front();
  const double bytes = static_cast<double>(codes.nbytes()) / static_cast<double>(matrix.rows * matrix.columns);
  const auto bytes_of = [&](std::int64_t elements) {
    return static_cast<std::int64_t>(static_cast<double>(elements) * bytes);
  };
  const auto* at = static_cast<const char*>(codes.const_data_ptr());
  return {at + bytes_of(tile.row * matrix.columns + tile.column), tile.rows, bytes_of(tile.columns),
          bytes_of(matrix.columns)};
}

PackedPanels::PackedPanels(const tensor::PackedMatrix& matrix, tensor::PairsOf pairs)
    : matrix_(matrix), codec_(dynamic_cast<const tensor::PanelCodec*>(matrix.codec.get())), pairs_(pairs) {}

tensor::MatrixTile PackedPanels::tile_of(const kernels::PanelPart& part) const {
  if (transposed()) return {part.column, part.columns, part.row, part.rows};
  return {part.row, part.rows, part.column, part.columns};
}

void PackedPanels::pack(const kernels::PanelPart& part, std::uint32_t* out) const {
  const auto tile = tile_of(part);
  if (codec_ != nullptr && codec_->decode_panel(matrix_, tile, pairs_, out)) return;
  if (transposed())
    pack_pairs_of_columns(matrix_, codec_, tile, out);
  else
    pack_pairs_of_rows(matrix_, tile, out);
}

}  // namespace tessera::nn
