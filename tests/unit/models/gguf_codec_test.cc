// Quantised tensors of GGUF files whose bytes stay as they are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/cpu_level.h"
#include "io/gguf.h"
#include "quant/gguf_codec.h"
#include "support/fake_device.h"
#include "tensor/panel_codec.h"

namespace tessera::models {
namespace {

const std::string kGgufFolder = std::string(TESSERA_TEST_DATA) + "/gguf/";

TEST(GgufCodec, EveryBlockFormatHasTheValuesOfTheDenseReader) {
  std::set<std::string> formats;
  for (const char* name : {"blocks.gguf", "grid_blocks.gguf"}) {
    const auto file = io::open_gguf(kGgufFolder + name);
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
  }
  EXPECT_EQ(formats.size(), 22u);
}

/// A matrix of any codes, whose scales are numbers. `scales`: where their low bytes are; the high ones are set.
tensor::PackedMatrix of_any_codes(const io::GgufBlock& block, std::int64_t rows, std::int64_t columns,
                                  const std::vector<std::int64_t>& scales, std::mt19937& random) {
  auto bytes = at::empty({rows * columns / block.elements * block.bytes}, at::kByte);
  auto* at = bytes.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < bytes.numel(); ++i) at[i] = static_cast<std::uint8_t>(random());
  for (std::int64_t begin = 0; begin < bytes.numel(); begin += block.bytes)
    for (const auto scale : scales)
      at[begin + scale + 1] = static_cast<std::uint8_t>((random() & 0x80) + 0x10 + random() % 0x30);
  return {quant::gguf_codec(block), rows, columns, {bytes}};
}

TEST(GgufCodec, RowsOfBfloat16AreTheRoundedValues) {
  if (cpu_level() < CpuLevel::kAvx512Bf16) GTEST_SKIP() << "this processor has no such loops";
  const std::map<std::uint32_t, std::vector<std::int64_t>> scales_of = {
      {2, {0}},     {3, {0, 2}}, {6, {0}},  {7, {0, 2}}, {8, {0}},  {12, {0, 2}},
      {13, {0, 2}}, {14, {208}}, {20, {0}}, {23, {0}},   {39, {-1}}};
  std::mt19937 random(1);
  for (const auto& [type, scales] : scales_of) {
    const auto& block = *io::gguf_block(type);
    SCOPED_TRACE(block.name);
    constexpr std::int64_t kRows = 7, kColumns = 1024;
    const auto matrix = of_any_codes(block, kRows, kColumns, scales, random);
    const auto expected = tensor::unpack(matrix, at::kBFloat16);
    const auto& codec = dynamic_cast<const tensor::PanelCodec&>(*matrix.codec);
    const auto decoded = [&](const tensor::MatrixTile& tile, std::int64_t stride) {
      auto out = at::zeros({tile.rows, stride}, at::kBFloat16);
      EXPECT_TRUE(codec.decode_rows(matrix, tile, static_cast<std::uint16_t*>(out.mutable_data_ptr()), stride));
      return out.narrow(1, 0, tile.columns);
    };
    EXPECT_TRUE(at::equal(decoded({0, kRows, 0, kColumns}, kColumns), expected));
    EXPECT_TRUE(at::equal(decoded({2, 3, 256, 512}, 600), expected.narrow(0, 2, 3).narrow(1, 256, 512)));
    EXPECT_FALSE(codec.decode_rows(matrix, {0, 1, 16, 256}, nullptr, 256)) << "a part of a block";
  }
  const auto other = of_any_codes(*io::gguf_block(10), 1, 256, {80, 82}, random);
  EXPECT_FALSE(dynamic_cast<const tensor::PanelCodec&>(*other.codec).decode_rows(other, {0, 1, 0, 256}, nullptr, 256));
}

}  // namespace
}  // namespace tessera::models
