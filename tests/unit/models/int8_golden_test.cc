// LLM.int8() against what bitsandbytes made of the same values on a CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "quant/encode_kernels.h"
#include "quant/int8_codec.h"
#include "quant/packed_source.h"
#include "support/fake_device.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/weight.h"

namespace tessera::quant {
namespace {

const std::string kInt8File = std::string(TESSERA_TEST_DATA) + "/goldens/C_quant/int8.safetensors";

/// The cases of the file, by what their names begin with.
std::vector<std::string> int8_cases(const io::TensorSource& file) {
  std::vector<std::string> out;
  for (const auto& info : file.tensors())
    if (info.name.ends_with(".CB")) out.push_back(info.name.substr(0, info.name.size() - 3));
  return out;
}

TEST(Int8Golden, CodesAndScalesAreTheReferences) {
  const auto file = io::open_safetensors(kInt8File);
  const auto cases = int8_cases(*file);
  ASSERT_EQ(cases.size(), 12u);
  for (const auto& name : cases) {
    SCOPED_TRACE(name);
    const auto w = io::read_tensor(*file, name + ".w");
    const auto packed = tensor::pack(int8_codec(w.size(1)), w);
    EXPECT_TRUE(at::equal(packed.fields[0], io::read_tensor(*file, name + ".CB")));
    EXPECT_TRUE(at::equal(packed.fields[1], io::read_tensor(*file, name + ".SCB")));
  }
}

TEST(Int8Golden, RowsOfAnInputAreTheReferencesAndOutliersAreLeftOut) {
  const auto file = io::open_safetensors(kInt8File);
  int outliers = 0;
  for (const auto& name : int8_cases(*file)) {
    if (!file->find(name + ".x_int8")) continue;
    SCOPED_TRACE(name);
    const auto rows = int8_rows(io::read_tensor(*file, name + ".x"), name.ends_with("thr6") ? 6.0 : 0.0);
    EXPECT_TRUE(at::equal(rows.codes, io::read_tensor(*file, name + ".x_int8")));
    EXPECT_TRUE(at::equal(rows.scales, io::read_tensor(*file, name + ".x_stats")));
    const auto expected = io::read_tensor(*file, name + ".outlier_cols");
    EXPECT_TRUE(at::equal(rows.outliers.defined() ? rows.outliers : at::zeros({0}, at::kLong), expected));
    outliers += static_cast<int>(expected.numel());
  }
  EXPECT_GT(outliers, 0);
}

TEST(Int8Golden, ProductsOfTrainingAreTheReferences) {
  const auto file = io::open_safetensors(kInt8File);
  for (const auto& name : int8_cases(*file)) {
    SCOPED_TRACE(name);
    const auto read = [&, &prefix = name](const std::string& leaf) { return io::read_tensor(*file, prefix + leaf); };
    const auto x = read(".x");
    const auto matrix = tensor::pack(int8_codec(x.size(1)), read(".w"));
    const nn::Weight weight(std::make_shared<const tensor::PackedMatrix>(matrix));
    const double unit = x.scalar_type() == at::kFloat ? 1e-6 : x.scalar_type() == at::kHalf ? 0x1p-10 : 0x1p-7;
    const auto close = [&](const at::Tensor& is, const at::Tensor& was) {
      const auto bound = unit * was.abs().max().item<double>();
      EXPECT_LE((is.to(at::kFloat) - was.to(at::kFloat)).abs().max().item<double>(), bound);
    };
    close(weight.product(x) + read(".bias"), read(".y"));
    close(weight.transposed_product(read(".dy")), read(".dx"));
  }
}

TEST(Int8Codec, EveryCodeIsTheRoundedQuotientOfHalves) {
  at::manual_seed(7);
  const auto in_half = [](float x) { return static_cast<float>(c10::Half(x)); };
  for (const std::int64_t columns : {1, 3, 16, 33, 97, 1000})
    for (const float size : {1e-8f, 1e-6f, 1e-4f, 1.0f, 3e4f}) {
      const auto x = at::randn({5, columns}) * size;
      x.mutable_data_ptr<float>()[0] = 0.0f;
      x.mutable_data_ptr<float>()[columns] = std::nanf("");
      x.mutable_data_ptr<float>()[2 * columns] = -65519.9f;
      x.mutable_data_ptr<float>()[3 * columns] = 65520.0f;  // infinite as float16
      const auto packed = tensor::pack(int8_codec(columns), x);
      for (std::int64_t r = 0; r < 5; ++r) {
        const auto* row = x.const_data_ptr<float>() + r * columns;
        float largest = 0;  // NaN if one is
        for (std::int64_t c = 0; c < columns; ++c)
          if (!(std::abs(row[c]) <= largest) && !std::isnan(largest)) largest = std::abs(row[c]);
        const float scale = in_half(largest), factor = scale > 0 ? 1.0f / scale * 127.0f : 0.0f;
        const float found = packed.fields[1].const_data_ptr<float>()[r];
        ASSERT_TRUE(found == scale || (std::isnan(found) && std::isnan(scale))) << found << ' ' << scale;
        for (std::int64_t c = 0; c < columns; ++c) {
          const float scaled = std::nearbyint(in_half(row[c]) * factor);
          const int expected = std::isnan(scaled) ? 0 : static_cast<int>(scaled);
          ASSERT_EQ(packed.fields[0].const_data_ptr<std::int8_t>()[r * columns + c], expected)
              << columns << ' ' << size << ' ' << r << ' ' << c;
        }
      }
    }
}

/// Where a value lies among those of float16 shows in the last bits of its product with a power of two.
TEST(Int8Codec, ValuesAreRoundedToHalfFirst) {
  for (int exponent = -26; exponent < 17; ++exponent) {
    const float factor = std::ldexp(1.0f, std::min(24, 10 - exponent));
    std::vector<float> x;
    for (int k = 0; k < 1 << 14; ++k) x.push_back(std::ldexp(1.0f + static_cast<float>(k) * 0x1p-14f, exponent));
    for (const float sign : {1.0f, -1.0f}) {
      auto values = x;
      for (auto& value : values) value *= sign;
      std::vector<std::int8_t> codes(values.size());
      int8_codes(values.data(), static_cast<std::int64_t>(values.size()), factor, codes.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float scaled = static_cast<float>(c10::Half(values[i])) * factor;
        if (std::isinf(scaled)) continue;
        ASSERT_EQ(codes[i], static_cast<std::int8_t>(static_cast<std::int64_t>(std::nearbyint(scaled)))) << values[i];
      }
    }
  }
}

TEST(Int8Codec, AnotherDeviceMakesTheSameBitsItself) {
  at::manual_seed(8);
  for (const std::int64_t columns : {64, 51, 3}) {
    auto x = at::randn({41, columns});
    x.select(0, 3).zero_();
    const auto packed = tensor::pack(int8_codec(columns), x);
    const auto x_there = x.to(test::fake_device());
    const auto waits_to_pack = test::fake_device_waits();
    const auto there = tensor::pack(int8_codec(columns), x_there);
    EXPECT_EQ(test::fake_device_waits(), waits_to_pack);
    for (std::size_t i = 0; i < packed.fields.size(); ++i) {
      EXPECT_EQ(there.fields[i].device(), test::fake_device());
      EXPECT_TRUE(at::equal(there.fields[i].cpu(), packed.fields[i])) << i;
    }
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto waits = test::fake_device_waits();
      const auto values = tensor::unpack(there, dtype);
      const auto part = tensor::unpack(there, {3, 7, 1, 2}, dtype);
      EXPECT_EQ(test::fake_device_waits(), waits);
      EXPECT_EQ(values.device(), test::fake_device());
      EXPECT_TRUE(at::equal(values.cpu(), tensor::unpack(packed, dtype)));
      EXPECT_TRUE(at::equal(part.cpu(), tensor::unpack(packed, {3, 7, 1, 2}, dtype)));
    }
  }
}

TEST(Int8Codec, InferenceOnAnotherDeviceIsTheCpus) {
  at::manual_seed(9);
  for (const auto& [tokens, out, in] : {std::tuple{1, 24, 40}, {7, 21, 33}, {17, 16, 64}, {40, 5, 3}})
    for (const double threshold : {0.0, 6.0}) {
      const auto matrix =
          std::make_shared<tensor::PackedMatrix>(tensor::pack(int8_codec(in, threshold), at::randn({out, in})));
      auto there = std::make_shared<tensor::PackedMatrix>(*matrix);
      for (auto& field : there->fields) field = field.to(test::fake_device());
      auto x = at::randn({tokens, in});
      x.select(1, in / 2).mul_(20);
      const auto expected = nn::Weight(matrix, nn::PackedProduct::kOfInference).product(x);
      const auto y = nn::Weight(there, nn::PackedProduct::kOfInference).product(x.to(test::fake_device()));
      EXPECT_EQ(y.device(), test::fake_device());
      EXPECT_TRUE(at::allclose(y.cpu(), expected, 1e-6, 1e-5)) << tokens << ' ' << out << ' ' << in;
      EXPECT_TRUE(threshold > 0 || at::equal(y.cpu(), expected));
    }
}

TEST(Int8, InferenceIsTheRoundedRowsProductAndTheOutliersExact) {
  at::manual_seed(5);
  auto x = at::randn({7, 40});
  x.select(1, 11).mul_(20);
  x.select(0, 3).zero_();
  const auto matrix =
      std::make_shared<const tensor::PackedMatrix>(tensor::pack(int8_codec(40, 6.0), at::randn({24, 40})));
  const auto values = tensor::unpack(*matrix, at::kFloat);
  const auto rows = int8_rows(x, 6.0);
  ASSERT_GT(rows.outliers.numel(), 0);
  auto rounded = rows.codes.to(at::kFloat) * rows.scales.unsqueeze(1) / 127;
  rounded.index_copy_(1, rows.outliers, x.index_select(1, rows.outliers));
  const nn::Weight weight(matrix, nn::PackedProduct::kOfInference);
  const auto y = weight.product(x);
  EXPECT_TRUE(at::allclose(y, rounded.mm(values.t()), 1e-3, 1e-3));  // bitsandbytes' 1 / 127^2 has five right digits
  EXPECT_FALSE(at::allclose(y, x.mm(values.t()), 1e-3, 1e-3));
  EXPECT_TRUE(at::allclose(weight.of_values().product(x), x.mm(values.t()), 1e-5, 1e-5));
  const auto u = at::randn({7, 2}), v = at::randn({2, 24});
  EXPECT_TRUE(at::allclose(weight.product(x, u, v), y + u.mm(v), 1e-5, 1e-5));
}

TEST(Int8, ProductsOfCodesAreExact) {
  const auto expect_exact = [](std::int64_t rows, std::int64_t in, std::int64_t out) {
    const auto codec = int8_codec(in, 0);
    const auto codes = at::randint(-127, 128, {out, in}, at::kChar), x = at::randint(-127, 128, {rows, in}, at::kFloat);
    x.select(1, 0).fill_(127);  // rows are their own codes
    const nn::Weight weight(std::make_shared<const tensor::PackedMatrix>(
                                tensor::PackedMatrix{codec, out, in, {codes, at::full({out}, 127.0f)}}),
                            nn::PackedProduct::kOfInference);
    const auto expected = x.to(at::kDouble).mm(codes.to(at::kDouble).t());
    const auto y = weight.product(x).to(at::kDouble);
    const double largest = expected.abs().max().item<double>();
    EXPECT_LT((y - expected).abs().max().item<double>(), 3e-5 * largest) << rows << ' ' << in << ' ' << out;
  };
  at::manual_seed(8);
  expect_exact(3, 1, 5);
  expect_exact(9, 70, 33);
  expect_exact(2, 2500, 17);
}

TEST(Int8, AFewRowsHaveTheBitsThatTheyHaveAmongMany) {
  at::manual_seed(10);
  for (const std::int64_t in : {1, 63, 64, 200, 577})
    for (const std::int64_t out : {1, 7, 130}) {
      const auto matrix =
          std::make_shared<const tensor::PackedMatrix>(tensor::pack(int8_codec(in, 0), at::randn({out, in})));
      const nn::Weight weight(matrix, nn::PackedProduct::kOfInference);
      const auto x = at::randn({20, in});
      const auto expected = weight.product(x);
      for (std::int64_t few = 0; few <= 8; ++few)
        EXPECT_TRUE(at::equal(weight.product(x.narrow(0, 11, few)), expected.narrow(0, 11, few)))
            << few << ' ' << out << ' ' << in;
    }
}

TEST(Int8, RowsOfAnInputAreThoseThatOperatorsMake) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  at::manual_seed(11);
  for (const double threshold : {0.0, 2.0, 6.0, 6.1})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      auto x = at::randn({9, 37}).mul_(2).to(dtype);
      x.select(0, 1).zero_();
      x.select(0, 2).fill_(7);
      x[3][4] = kNan, x[4][5] = kInf, x[4][6] = -kInf, x[5][7] = 70000.0, x[6][8] = 6.0, x[6][9] = 5.998,
      x[7][3] = -6.1;
      const auto rows = int8_rows(x, threshold), there = int8_rows(x.to(test::fake_device()), threshold);
      EXPECT_TRUE(at::equal(rows.codes, there.codes.cpu())) << threshold << ' ' << dtype;
      EXPECT_TRUE(at::allclose(rows.scales, there.scales.cpu(), 0, 0, true)) << threshold << ' ' << dtype;
      ASSERT_EQ(rows.outliers.defined(), there.outliers.defined());
      EXPECT_TRUE(threshold <= 0 || at::equal(rows.outliers, there.outliers.cpu())) << threshold << ' ' << dtype;
    }
}

TEST(Int8, ARangeThatIsPackedWhileReadHasTheBytesOfTheWholeMatrix) {
  at::manual_seed(6);
  const auto values = at::randn({66, 97});
  for (const bool transposed : {false, true}) {
    const auto source = packing_source(io::memory_source({{"l.weight", values}}),
                                       {{"l.weight", {Int8Settings{}, at::kBFloat16, transposed}}});
    const auto rounded = values.to(at::kBFloat16).to(at::kFloat);
    const auto whole = tensor::pack(source->codec("l.weight"), transposed ? rounded.t() : rounded);
    for (const auto& [begin, count] : {std::pair{0, 66 * 97}, {100, 1000}, {97, 97}, {6401, 1}}) {
      auto bytes = at::empty({count}, at::kByte);
      source->read_bytes("l.weight", begin, bytes);
      EXPECT_TRUE(at::equal(bytes.view(at::kChar), whole.fields[0].view(-1).narrow(0, begin, count))) << begin;
    }
    auto scales = at::empty({whole.rows * 4}, at::kByte);
    source->read_bytes("l.weight.SCB", 0, scales);
    EXPECT_TRUE(at::equal(scales.view(at::kFloat), whole.fields[1]));
  }
}

TEST(Int8, DamagedFoldersAreNamed) {
  using Tensors = std::map<std::string, at::Tensor>;
  const Tensors good = {{"l.weight", at::ones({4, 6}, at::kChar)},
                        {"l.SCB", at::ones({4})},
                        {"l.weight_format", at::zeros({}, at::kByte)}};
  const auto source = stored_packed(io::memory_source({good.begin(), good.end()}), {.int8_threshold = 5});
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->codec("l.weight")->name(), "int8, rows of 6, outliers from 5");
  EXPECT_EQ(source->find("l.SCB"), nullptr);
  EXPECT_TRUE(at::allclose(io::read_tensor(*source, "l.weight"), at::full({4, 6}, 1.0 / 127)));
  const auto refusal = [&](const std::string& name, const at::Tensor& value) {
    auto tensors = good;
    tensors.erase(name);
    if (value.defined()) tensors[name] = value;
    try {
      (void)stored_packed(io::memory_source({tensors.begin(), tensors.end()}));
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto expect = [&](const std::string& name, const at::Tensor& value, const std::string& part) {
    const auto message = refusal(name, value);
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  };
  expect("l.SCB", {}, "lacks their scales 'l.SCB'");
  expect("l.SCB", at::ones({5}), "'l.SCB': has 20 bytes of Float; expected, of a matrix of 4 x 6 in int8");
  expect("l.SCB", at::ones({8}, at::kHalf), "has 16 bytes of Half; expected, of a matrix of 4 x 6");
  expect("l.weight", {}, "int8 codes that are not there");
  expect("l.weight", at::ones({4, 6}), "were they cast?");
  expect("l.weight_format", at::ones({}, at::kByte), "only rows (0)");
}

}  // namespace
}  // namespace tessera::quant
