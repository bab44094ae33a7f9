#include "quant/gguf_codec.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::int64_t kLargestBlock = 256;  // elements

class GgufCodec final : public tensor::Codec {
 public:
  explicit GgufCodec(const io::GgufBlock& block) : block_(block) {
    TESSERA_CHECK(block.elements <= kLargestBlock, "a block of GGUF has at most 256 elements");
  }

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
    float values[kLargestBlock];
    for (std::int64_t r = 0; r < tile.rows; ++r, out += stride) {
      const auto begin = (tile.row + r) * matrix.columns + tile.column;
      for (std::int64_t done = 0; done < tile.columns;) {
        const auto at = begin + done, skip = at % block_.elements;
        const auto count = std::min(block_.elements - skip, tile.columns - done);
        const auto* block = codes + at / block_.elements * block_.bytes;
        const bool whole = count == block_.elements;
        block_.dequantize(block, whole ? out + done : values);
        if (!whole) std::copy_n(values + skip, count, out + done);
        done += count;
      }
    }
  }

 private:
  io::GgufBlock block_;
};

}  // namespace

std::shared_ptr<const tensor::Codec> gguf_codec(const io::GgufBlock& block) {
  return std::make_shared<GgufCodec>(block);
}

}  // namespace tessera::quant
