// Quantised tensors of GGUF files whose bytes stay as they are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "io/gguf.h"
#include "quant/gguf_codec.h"
#include "support/fake_device.h"

namespace tessera::models {
namespace {

const std::string kGgufFolder = std::string(TESSERA_TEST_DATA) + "/gguf/";

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
    matrix.fields[0] = matrix.fields[0].to(test::fake_device());  // decoded by the host
    const auto there = tensor::unpack(matrix, at::kFloat);
    EXPECT_EQ(there.device(), test::fake_device());
    EXPECT_TRUE(at::equal(there.cpu(), expected));
  }
  EXPECT_EQ(formats.size(), 10u);
}

}  // namespace
}  // namespace tessera::models
