// Quantised tensors of GGUF files whose bytes stay as they are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "io/gguf.h"
#include "models/gguf_model.h"
#include "quant/gguf_codec.h"

namespace tessera::models {
namespace {

const std::string kGgufFolder = std::string(TESSERA_TEST_DATA) + "/gguf/";

tensor::PackedMatrix packed_matrix(const quant::PackedSource& source, const io::TensorInfo& info, bool turned) {
  tensor::PackedMatrix matrix{source.codec(info.name), info.shape[0], info.shape[1], {}};
  if (turned) std::swap(matrix.rows, matrix.columns);
  const auto size = matrix.codec->fields(matrix.rows, matrix.columns).front().shape[0];
  EXPECT_EQ(info.nbytes(), size);
  auto bytes = at::empty({size}, at::kByte);
  const auto cut = size / 3;  // wherever a rank's slice ends
  source.read_bytes(info.name, 0, bytes.narrow(0, 0, cut));
  source.read_bytes(info.name, cut, bytes.narrow(0, cut, size - cut));
  matrix.fields.push_back(bytes);
  return matrix;
}

TEST(GgufCodec, EveryBlockFormatHasTheValuesOfTheDenseReader) {
  const auto file = io::open_gguf(kGgufFolder + "blocks.gguf");
  std::set<std::string> formats;
  for (const auto& info : file->tensors()) {
    const auto* block = file->block_of(info.name);
    if (!block) continue;
    SCOPED_TRACE(block->name);
    formats.insert(block->name);
    const auto columns = info.shape.back(), rows = info.numel() / columns;
    const auto expected = io::read_tensor(*file, info.name).view({rows, columns});
    tensor::PackedMatrix matrix{quant::gguf_codec(*block), rows, columns, {at::empty({info.nbytes()}, at::kByte)}};
    file->read_bytes(info.name, 0, matrix.fields[0]);
    EXPECT_TRUE(at::equal(tensor::unpack(matrix, at::kFloat), expected));
    const tensor::MatrixTile tile{rows - 1, 1, 5, columns - 9};
    EXPECT_TRUE(at::equal(tensor::unpack(matrix, tile, at::kFloat),
                          expected.narrow(0, tile.row, 1).narrow(1, tile.column, tile.columns)));
  }
  EXPECT_EQ(formats.size(), 10u);
}

TEST(GgufCodec, MatricesOfEveryFamilyKeepTheirBytesWhateverTheConversionDidToTheirRows) {
  int packed = 0, mapped = 0;
  for (const std::string family :
       {"llama", "mixtral", "qwen2", "gemma2", "phi3", "gpt2", "bloom", "falcon", "gptneox"}) {
    const auto weights = open_model_weights(kGgufFolder + family + ".gguf");
    const auto source = std::dynamic_pointer_cast<const quant::PackedSource>(weights);
    ASSERT_NE(source, nullptr);
    EXPECT_TRUE(source->is_also_dense());
    for (const auto& info : source->tensors()) {
      if (!source->codec(info.name)) continue;
      SCOPED_TRACE(family + " " + info.name);
      ++packed;
      const auto expected = io::read_tensor(*source, info.name).to(at::kFloat);
      const bool turned = family == "gpt2" && info.name.find(".c_") != std::string::npos;
      const auto matrix = packed_matrix(*source, info, turned);
      const auto values = tensor::unpack(matrix, at::kFloat);
      EXPECT_TRUE(at::equal(turned ? values.t() : values, expected));
      if (const auto place = source->map_bytes(info.name)) {
        ++mapped;
        EXPECT_EQ(std::memcmp(place->data, matrix.fields[0].const_data_ptr(), matrix.fields[0].nbytes()), 0);
      }
    }
  }
  EXPECT_GT(packed, 0);
  EXPECT_GT(mapped, 0);
  EXPECT_LT(mapped, packed);  // rows of rotary projections are not where they were
}

}  // namespace
}  // namespace tessera::models
