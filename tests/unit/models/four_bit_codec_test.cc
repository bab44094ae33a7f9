// Matrices of four-bit codes: each element by itself, and any part of a matrix.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "quant/four_bit_codec.h"
#include "support/fake_device.h"

namespace tessera::quant {
namespace {

TEST(FourBitCodec, EveryElementIsTheValueOfItsCodeTimesItsScale) {
  at::manual_seed(4);
  for (const auto type : {FourBitType::kNf4, FourBitType::kFp4}) {
    const auto packed = tensor::pack(four_bit_codec({.type = type}), at::randn({37, 83}));
    const auto values = tensor::unpack(packed, at::kFloat).view(-1);
    const auto* codes = packed.fields[0].const_data_ptr<std::uint8_t>();
    const auto* absmax = packed.fields[1].const_data_ptr<float>();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const auto code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      const float expected = four_bit_values(type)[static_cast<std::size_t>(code)] * absmax[i / 64];
      ASSERT_EQ(values.const_data_ptr<float>()[i], expected) << i;
    }
  }
}

TEST(FourBitCodec, AnyPartOfAMatrixHasItsValues) {
  at::manual_seed(3);
  for (const bool nested : {false, true}) {
    const auto packed = tensor::pack(four_bit_codec({.block = 32, .nested = nested}), at::randn({40, 51}));
    const auto whole = tensor::unpack(packed, at::kFloat);
    for (const tensor::MatrixTile& tile :
         {tensor::MatrixTile{0, 1, 0, 1}, {3, 7, 5, 33}, {39, 1, 50, 1}, {2, 38, 31, 2}})
      EXPECT_TRUE(at::equal(tensor::unpack(packed, tile, at::kFloat),
                            whole.narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns)));
  }
}

TEST(FourBitCodec, PartsThatBeginAndEndAnywhereHaveTheirValues) {
  at::manual_seed(5);
  const std::int64_t columns = 301;  // rows begin in the middle of blocks and of bytes
  const auto packed = tensor::pack(four_bit_codec({.block = 64}), at::randn({5, columns}));
  const auto whole = tensor::unpack(packed, at::kFloat);
  for (std::int64_t begin = 0; begin < 130; begin += begin % 7 + 1)
    for (const std::int64_t count : {1, 31, 32, 33, 63, 64, 65, 96, 128, 160, 171}) {
      const auto part = tensor::unpack(packed, {1, 4, begin, count}, at::kFloat);
      ASSERT_TRUE(at::equal(part, whole.narrow(0, 1, 4).narrow(1, begin, count))) << begin << ", " << count;
    }
}

/// quantize_4bit() of bitsandbytes 0.50.2 on a CPU: the codes of the first byte, and absmax.
struct Reference {
  std::int64_t numel;
  float first, second;  // and zeros
  std::uint8_t codes;
  float absmax;
};

TEST(FourBitCodec, SmallScalesAndALastBlockThatIsNotWholeAreBitsandbytes) {
  for (const auto& r : {Reference{64, 0, 0, 0x77, 0},
                        {6, 0, 0, 0x77, 1e-38f},
                        {64, 1e-39f, -5e-40f, 0x86, 1e-39f},
                        {6, 1e-39f, -5e-40f, 0x86, 1e-38f},
                        {64, 0.903069258f, 0.351576209f, 0xfb, 0.903069258f},  // times the inverse
                        {6, 0.903069258f, 0.351576209f, 0xfc, 0.903069258f},   // divided
                        {64, 1.13868046f, 0.980948687f, 0xff, 1.13868046f},
                        {6, 1.13868046f, 0.980948687f, 0xfe, 1.13868046f}}) {
    const auto x = at::zeros({1, r.numel});
    x.mutable_data_ptr<float>()[0] = r.first;
    x.mutable_data_ptr<float>()[1] = r.second;
    const auto packed = tensor::pack(four_bit_codec({}), x);
    EXPECT_EQ(packed.fields[0].const_data_ptr<std::uint8_t>()[0], r.codes) << r.numel << ' ' << r.first;
    EXPECT_EQ(packed.fields[1].const_data_ptr<float>()[0], r.absmax) << r.numel << ' ' << r.first;
  }
}

/// The code of the nearest value, of two as near the lower one's; of NaN the lowest.
std::uint8_t nearest_code(FourBitType type, float x) {
  const auto& values = four_bit_values(type);
  std::vector<std::uint8_t> order(16);
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return values[a] < values[b]; });
  std::size_t place = 0;
  for (std::size_t i = 0; i < 15; ++i) {
    const double middle = (double{values[order[i]]} + double{values[order[i + 1]]}) / 2;
    place += x > static_cast<float>(middle) ? 1 : 0;
  }
  return order[place];
}

/// NaN if one is, as torch.max has it.
float larger(float a, float b) {
  return std::isnan(a) || a > b ? a : b;
}

TEST(FourBitCodec, EveryCodeIsThatOfTheNearestValue) {
  at::manual_seed(6);
  for (const auto type : {FourBitType::kNf4, FourBitType::kFp4})
    for (const std::int64_t block : {32, 64, 4096})
      for (const std::int64_t numel : {1, 7, 32, 64, 95, 4096, 4097, 3 * 4096, 9999}) {
        const auto x = at::randn({1, numel});
        auto* values = x.mutable_data_ptr<float>();
        for (std::int64_t i = 0; i < numel; i += 7) {  // middles, and values that are none
          const auto& of_code = four_bit_values(type);
          values[i] = (of_code[static_cast<std::size_t>(i % 16)] + of_code[static_cast<std::size_t>((i + 1) % 16)]) / 2;
        }
        if (numel > 5000) values[5000] = std::nanf(""), values[5001] = -0.0f, values[5002] = 1e-42f;
        const auto packed = tensor::pack(four_bit_codec({.type = type, .block = block}), x);
        for (std::int64_t begin = 0, b = 0; begin < numel; begin += block, ++b) {
          const auto end = std::min(numel, begin + block);
          const bool whole = end - begin == block;
          float absmax = whole ? 0.0f : 1e-38f;
          for (auto i = begin; i < end; ++i) absmax = larger(absmax, std::abs(values[i]));
          const float found = packed.fields[1].const_data_ptr<float>()[b];
          ASSERT_TRUE(found == absmax || (std::isnan(found) && std::isnan(absmax))) << found << ' ' << absmax;
          for (auto i = begin; i < end; ++i) {
            const float scaled = whole ? values[i] * (1.0f / absmax) : values[i] / absmax;
            const auto byte = packed.fields[0].const_data_ptr<std::uint8_t>()[i / 2];
            ASSERT_EQ(i % 2 == 0 ? byte >> 4 : byte & 15, nearest_code(type, scaled))
                << block << ' ' << numel << ' ' << i;
          }
        }
        if (numel % 2 == 0) continue;
        EXPECT_EQ(packed.fields[0].const_data_ptr<std::uint8_t>()[numel / 2] & 15, nearest_code(type, 0));
      }
}

TEST(FourBitCodec, AnotherDeviceMakesTheSameBitsItself) {
  at::manual_seed(5);
  for (const auto type : {FourBitType::kNf4, FourBitType::kFp4})
    for (const bool nested : {false, true})
      for (const std::int64_t columns : {64, 51, 3}) {
        auto x = at::randn({41, columns});
        x.view(-1).narrow(0, 64, 40).zero_();
        x.view(-1).narrow(0, 0, 2).fill_(1e-39f);
        if (!nested) x[40][0] = std::nanf("");
        const auto codec = four_bit_codec({.type = type, .nested = nested});
        const auto packed = tensor::pack(codec, x);
        const auto x_there = x.to(test::fake_device());
        const auto waits_to_pack = test::fake_device_waits();
        const auto there = tensor::pack(codec, x_there);
        EXPECT_EQ(test::fake_device_waits(), waits_to_pack + (nested ? 1 : 0)) << "scales are packed on the host";
        for (std::size_t i = 0; i < packed.fields.size(); ++i) {
          EXPECT_EQ(there.fields[i].device(), test::fake_device());
          EXPECT_TRUE(at::allclose(there.fields[i].cpu(), packed.fields[i], 0, 0, /*equal_nan=*/true)) << i;
          EXPECT_EQ(there.fields[i].sizes(), packed.fields[i].sizes());
        }
        const auto waits = test::fake_device_waits();
        const auto values = tensor::unpack(there, at::kFloat);
        EXPECT_EQ(test::fake_device_waits(), waits);
        EXPECT_EQ(values.device(), test::fake_device());
        EXPECT_TRUE(at::allclose(values.cpu(), tensor::unpack(packed, at::kFloat), 0, 0, /*equal_nan=*/true));
        const tensor::MatrixTile tile{3, 7, 1, 2};
        EXPECT_TRUE(
            at::equal(tensor::unpack(there, tile, at::kBFloat16).cpu(), tensor::unpack(packed, tile, at::kBFloat16)));
      }
}

}  // namespace
}  // namespace tessera::quant
