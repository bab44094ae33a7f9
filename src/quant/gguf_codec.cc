#include "quant/gguf_codec.h"

#include "quant/gguf_rows.h"
#include "tensor/panel_codec.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

class GgufCodec final : public tensor::Codec, public tensor::PanelCodec {
 public:
  explicit GgufCodec(const io::GgufBlock& block) : block_(block), rows_(gguf_rows(block.type)) {}

  std::string name() const override { return std::string("GGUF ") + block_.name; }
  std::int64_t block_numel() const override { return block_.elements; }
  std::vector<tensor::PackedField> fields(std::int64_t rows, std::int64_t columns) const override {
    return {{"", at::kByte, {rows * columns / block_.elements * block_.bytes}, 1}};
  }
  void encode(const float*, std::int64_t, const std::vector<std::byte*>&) const override {
    throw Error(name() + ": weights of this form are read, not made");
  }
  void decode(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, float* out,
              std::int64_t stride) const override {
    const auto* codes = reinterpret_cast<const std::byte*>(matrix.fields.front().const_data_ptr<std::uint8_t>());
    for (std::int64_t r = 0; r < tile.rows; ++r, out += stride)
      block_.dequantize_elements(codes, (tile.row + r) * matrix.columns + tile.column, tile.columns, out);
  }

  bool decode_panel(const tensor::PackedMatrix&, const tensor::MatrixTile&, tensor::PairsOf,
                    std::uint32_t*) const override {
    return false;
  }
  bool decode_rows(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, std::uint16_t* out,
                   std::int64_t stride) const override {
    if (rows_ == nullptr || tile.column % block_.elements != 0 || tile.columns % block_.elements != 0) return false;
    const auto* codes = reinterpret_cast<const std::byte*>(matrix.fields.front().const_data_ptr<std::uint8_t>());
    const auto row_bytes = matrix.columns / block_.elements * block_.bytes, blocks = tile.columns / block_.elements;
    const auto* from = codes + tile.row * row_bytes + tile.column / block_.elements * block_.bytes;
    if (tile.columns == matrix.columns && stride == tile.columns) {
      rows_(from, tile.rows * blocks, out);
    } else {
      for (std::int64_t r = 0; r < tile.rows; ++r) rows_(from + r * row_bytes, blocks, out + r * stride);
    }
    return true;
  }

 private:
  io::GgufBlock block_;
  GgufRows rows_;  // null: there is no loop of its own
};

}  // namespace

std::shared_ptr<const tensor::Codec> gguf_codec(const io::GgufBlock& block) {
  return std::make_shared<GgufCodec>(block);
}

}  // namespace tessera::quant
