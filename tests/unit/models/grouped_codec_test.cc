// GPTQ and AWQ matrices against values that a few lines of Python made (tests/data/grouped/make_grouped.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "families/quantization.h"
#include "quant/grouped_codec.h"
#include "quant/packed_source.h"
#include "support/fake_device.h"
#include "tensor/panel_codec.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/weight.h"

namespace tessera::quant {
namespace {

const std::vector<std::string> kCases = {"gptq_g32",    "gptq_g64_act",  "gptq_g128", "gptq_whole", "gptq_short_last",
                                         "gptq_v2_g32", "gptq_8bit_g32", "awq_g32",   "awq_g128"};

using GroupedTensors = std::map<std::string, at::Tensor>;

GroupedTensors tensors_of_case(const std::string& name) {
  const auto file = io::open_safetensors(std::string(TESSERA_TEST_DATA) + "/grouped/matrices.safetensors");
  GroupedTensors out;
  for (const auto& info : file->tensors())
    if (info.name.starts_with(name + ".")) out["l" + info.name.substr(name.size())] = io::read_tensor(*file, info.name);
  return out;
}

std::shared_ptr<PackedSource> open_grouped(GroupedTensors tensors, const StoredSettings& said = {}) {
  tensors.erase("l.values");
  return stored_packed(io::memory_source({tensors.begin(), tensors.end()}), said);
}

TEST(GroupedCodec, ValuesAreScaleTimesCodeLessZero) {
  for (const auto& name : kCases) {
    SCOPED_TRACE(name);
    const auto tensors = tensors_of_case(name);
    const auto source = open_grouped(tensors, {.gptq_v2 = name.find("_v2_") != std::string::npos});
    ASSERT_NE(source, nullptr);
    ASSERT_NE(source->codec("l.weight"), nullptr);
    const auto expected = tensors.at("l.values");
    EXPECT_EQ(source->find("l.weight")->shape, expected.sizes().vec());
    auto values = at::empty({expected.numel()});
    source->read("l.weight", 0, values);
    EXPECT_TRUE(at::equal(values, expected.view(-1)));
    EXPECT_EQ(source->find("l.qweight"), nullptr);
    EXPECT_EQ(source->codec("l.weight")->name().find("activations") != std::string::npos, name == "gptq_g64_act");
  }
}

/// A matrix of any codes and zero points.
tensor::PackedMatrix of_any_codes(const GroupedSettings& settings, std::int64_t rows, std::int64_t columns) {
  tensor::PackedMatrix out{grouped_codec(settings), rows, columns, {}};
  for (const auto& field : out.codec->fields(rows, columns))
    out.fields.push_back(field.dtype == at::kInt
                             ? at::randint(-(1LL << 31), 1LL << 31, field.shape, at::kLong).to(at::kInt)
                             : at::randn(field.shape).to(field.dtype));
  return out;
}

TEST(GroupedCodec, ProductsOfAFewRowsAreThoseOfTheValues) {
  at::manual_seed(1);
  const std::int64_t columns = 672;
  for (const auto layout : {WordLayout::kGptq, WordLayout::kAwq})
    for (const std::int64_t rows : {8, 64, 200, 280})  // words of a vector and a half, a last half of a vector
      for (const std::int64_t group : {8, 40, 64, 84, 128, 672})
        for (const auto scales : {at::kHalf, at::kBFloat16, at::kFloat}) {
          const bool listed = layout == WordLayout::kGptq && group == 40;
          if (layout == WordLayout::kAwq && group == 84) continue;
          const GroupedSettings settings{.layout = layout,
                                         .groups = (columns + group - 1) / group,
                                         .group_size = group,
                                         .listed = listed,
                                         .zeros_less_one = group > 40,
                                         .scales = scales};
          const auto matrix = of_any_codes(settings, rows, columns);
          if (listed) matrix.fields[3].copy_(at::randint(0, settings.groups, {columns}));
          SCOPED_TRACE(matrix.codec->name());
          const auto& codec = dynamic_cast<const tensor::FewRowsCodec&>(*matrix.codec);
          const auto w = tensor::unpack(matrix, at::kFloat).to(at::kDouble);
          for (const auto& [few, dtype] : {std::pair{1, at::kFloat},
                                           {2, at::kBFloat16},
                                           {3, at::kFloat},
                                           {4, at::kFloat},
                                           {8, at::kFloat},
                                           {1, at::kBFloat16},
                                           {3, at::kBFloat16},
                                           {5, at::kBFloat16},
                                           {8, at::kBFloat16}}) {
            const auto x = at::randn({few, columns + 2}).to(dtype).narrow(1, 1, columns);
            const auto y = codec.few_rows_product(matrix, x);
            if (!y.defined()) GTEST_SKIP() << "this processor has no such loops";
            const auto exact = x.to(at::kDouble);
            const auto error = (y.to(at::kDouble) - at::matmul(exact, w.t())).abs();
            EXPECT_LT((error / at::matmul(exact.abs(), w.abs().t())).max().item<double>(), 2e-6) << rows << " " << few;
            for (std::int64_t f = 0; f < few; ++f)
              EXPECT_TRUE(at::equal(codec.few_rows_product(matrix, x.narrow(0, f, 1)), y.narrow(0, f, 1)))
                  << "a row depends on the others";
          }
        }
}

TEST(GroupedCodec, ProductsOfAFewRowsNeedFourBitsAndAwqsGroupsOfWholeWords) {
  const auto has = [](const GroupedSettings& settings) {
    const auto matrix = of_any_codes(settings, 64, 96);
    const auto& codec = dynamic_cast<const tensor::FewRowsCodec&>(*matrix.codec);
    return codec.few_rows_product(matrix, at::ones({1, 96})).defined();
  };
  EXPECT_FALSE(has({.layout = WordLayout::kAwq, .groups = 8, .group_size = 12}));
  EXPECT_FALSE(has({.bits = 8, .groups = 3, .group_size = 32}));
}

TEST(GroupedCodec, PartsAndProductsAreThoseOfTheValues) {
  for (const auto& name : kCases) {
    SCOPED_TRACE(name);
    const auto tensors = tensors_of_case(name);
    const auto source = open_grouped(tensors, {.gptq_v2 = name.find("_v2_") != std::string::npos});
    const auto expected = tensors.at("l.values");
    auto matrix = std::make_shared<tensor::PackedMatrix>();
    *matrix = {source->codec("l.weight"), expected.size(0), expected.size(1), {}};
    for (const auto& field : matrix->codec->fields(matrix->rows, matrix->columns)) {
      matrix->fields.push_back(at::empty(field.shape, field.dtype));
      source->read_bytes(field.full_name("l.weight"), 0, matrix->fields.back().view(-1).view(at::kByte));
    }
    for (const std::int64_t row : {0, 3, 7, 8})
      for (const std::int64_t column : {0, 5, 8, 63}) {
        const tensor::MatrixTile tile{row, std::min<std::int64_t>(10, matrix->rows - row), column,
                                      std::min<std::int64_t>(49, matrix->columns - column)};
        EXPECT_TRUE(at::equal(tensor::unpack(*matrix, tile, at::kFloat),
                              expected.narrow(0, row, tile.rows).narrow(1, column, tile.columns)))
            << row << " " << column;
      }
    auto there = std::make_shared<tensor::PackedMatrix>(*matrix);
    for (auto& field : there->fields) field = field.to(test::fake_device());
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto waits = test::fake_device_waits();
      const auto values = tensor::unpack(*there, dtype), part = tensor::unpack(*there, {3, 5, 5, 41}, dtype);
      EXPECT_EQ(test::fake_device_waits(), waits);
      EXPECT_EQ(values.device(), test::fake_device());
      EXPECT_TRUE(at::equal(values.cpu(), tensor::unpack(*matrix, dtype)));
      EXPECT_TRUE(at::equal(part.cpu(), tensor::unpack(*matrix, {3, 5, 5, 41}, dtype)));
    }
    const nn::Weight weight(matrix);
    const auto x = at::randn({5, expected.size(1)}), g = at::randn({5, expected.size(0)});
    EXPECT_TRUE(at::allclose(weight.product(x), x.mm(expected.t()), 1e-5, 1e-4));
    EXPECT_TRUE(at::allclose(weight.transposed_product(g), g.mm(expected), 1e-5, 1e-4));
  }
}

TEST(GroupedCodec, TwoBitsAreRead) {
  const auto random_words = [](at::IntArrayRef shape) {
    return at::randint(-(1LL << 31), 1LL << 31, shape, at::kLong).to(at::kInt);
  };
  const GroupedTensors tensors = {{"l.qweight", random_words({3, 16})},  // 48 inputs, 16 outputs, groups of 16
                                  {"l.qzeros", random_words({3, 1})},
                                  {"l.scales", at::rand({3, 16})}};
  const auto bits_of = [](const at::Tensor& words) {  // 16 of a word, the first in the lowest bits
    return words.to(at::kLong).unsqueeze(-1).bitwise_right_shift(at::arange(0, 32, 2, at::kLong)).bitwise_and(3);
  };
  const auto codes = bits_of(tensors.at("l.qweight")), zeros = bits_of(tensors.at("l.qzeros")).view({3, 16, 1});
  const auto expected = ((codes - zeros) * tensors.at("l.scales").unsqueeze(-1)).permute({1, 0, 2}).reshape({16, 48});

  const auto said =
      families::read_quantization({{"quantization_config", {{"quant_method", "gptq"}, {"bits", 2}}}}, "f");
  ASSERT_TRUE(said);
  const auto source = open_grouped(tensors, {.gptq_v2 = true, .bits = said->bits});
  EXPECT_TRUE(at::equal(io::read_tensor(*source, "l.weight"), expected));
}

TEST(GroupedCodec, FormatsAreThoseOfBothSpellings) {
  const auto read = [](const std::string& method, nlohmann::json keys) {
    keys["quant_method"] = method;
    const nlohmann::json config = {{"quantization_config", keys}};
    EXPECT_TRUE(families::unknown_quantization_keys(config).empty()) << keys;
    return families::read_quantization(config, "config.json").value();
  };
  EXPECT_FALSE(read("gptq", {}).gptq_v2);
  EXPECT_TRUE(read("gptq", {{"checkpoint_format", "gptq_v2"}}).gptq_v2);
  EXPECT_TRUE(read("gptq", {{"format", "GPTQ_V2"}, {"act_group_aware", true}}).gptq_v2);
  EXPECT_FALSE(read("gptq", {{"format", "gptq_v2"}, {"checkpoint_format", "gptq"}}).gptq_v2);
  EXPECT_THROW(read("gptq", {{"format", "marlin"}}), ConfigError);
  EXPECT_THROW(read("awq", {{"format", "gemv"}, {"sym", false}}), ConfigError);
  EXPECT_EQ(read("awq", {{"format", "gemv"}, {"version", "GEMM"}}).form, families::PackedForm::kAwq);
}

// Three groups of 80 inputs might be 27 each; config.json says 32, or quantisers take powers of two.
TEST(GroupedCodec, AShortLastGroupNeedsNoList) {
  const auto all = tensors_of_case("gptq_short_last");
  for (const auto& [has_list, said] :
       {std::pair(true, 32), std::pair(false, 32), std::pair(true, 0), std::pair(false, 0)}) {
    auto tensors = all;
    if (!has_list) tensors.erase("l.g_idx");
    const auto source = open_grouped(tensors, {.bits = 4, .group_size = said});
    auto values = at::empty({tensors.at("l.values").numel()});
    source->read("l.weight", 0, values);
    EXPECT_TRUE(at::equal(values, tensors.at("l.values").view(-1))) << has_list;
    const auto codec = source->codec("l.weight");
    EXPECT_EQ(codec->name().find("activations"), std::string::npos) << has_list;
    const auto& expected = tensors.at("l.values");
    tensor::PackedMatrix there{codec, expected.size(0), expected.size(1), {}};
    for (const auto& field : codec->fields(there.rows, there.columns)) {
      const auto bytes = at::empty(field.shape, field.dtype);
      source->read_bytes(field.full_name("l.weight"), 0, bytes.view(-1).view(at::kByte));
      there.fields.push_back(bytes.to(test::fake_device()));
    }
    EXPECT_TRUE(at::equal(tensor::unpack(there, at::kFloat).cpu(), expected));
  }
}

TEST(GroupedCodec, DamageIsNamed) {
  const auto expect = [](const std::string& name, const std::string& tensor, const at::Tensor& value,
                         const std::string& part, const StoredSettings& said = {}) {
    auto tensors = tensors_of_case(name);
    tensors.erase(tensor);
    if (value.defined()) tensors[tensor] = value;
    std::string message;
    try {
      (void)open_grouped(tensors, said);
    } catch (const DataError& e) {
      message = e.what();
    }
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  };
  expect("gptq_g32", "l.scales", {}, "lacks 'l.scales'");
  expect("gptq_g32", "l.qzeros", {}, "lacks 'l.qzeros'");
  expect("gptq_g32", "l.qweight", at::zeros({16, 24}), "were they cast?");
  expect("gptq_g32", "l.scales", at::zeros({4, 24}, at::kInt), "scales are float16");
  expect("gptq_g32", "l.scales", at::zeros({5, 24}), "no GPTQ codes");
  expect("gptq_g32", "l.g_idx", at::zeros({3}, at::kInt), "the matrix has 128 inputs");
  expect("gptq_g32", "l.g_idx", at::full({128}, 9, at::kInt), "says group 9");
  expect("awq_g32", "l.qzeros", at::zeros({3, 4}, at::kInt), "nor AWQ's");
  expect("gptq_g32", "none", {}, "'l.qweight': has codes of 4 bits; expected 8, as config.json says", {.bits = 8});
  expect("awq_g32", "none", {}, "'l.scales': has 3 groups for 96 inputs; expected 2, as config.json says group_size 64",
         {.group_size = 64});
  expect("gptq_short_last", "none", {}, "has 3 groups for 80 inputs; expected 1", {.group_size = 128});
}

}  // namespace
}  // namespace tessera::quant
