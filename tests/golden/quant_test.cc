// bitsandbytes' codes and statistics, against what bitsandbytes made of the same values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "quant/block_codes.h"
#include "quant/four_bit_codec.h"
#include "support/goldens.h"
#include "tessera/io/tensor_source.h"

namespace tessera::quant {
namespace {

const std::string kQuantFolder = test::goldens("C_quant").string() + "/";

bool there_is(const std::string& file) {
  return std::filesystem::exists(kQuantFolder + file);
}

FourBitType type_of(const std::string& name) {
  return name == "nf4" ? FourBitType::kNf4 : FourBitType::kFp4;
}

bool equal_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

template <class Map>
at::Tensor tensor_of(const Map& map) {
  return at::tensor(at::ArrayRef<float>(map.data(), map.size()));
}

TEST(QuantGolden, TheMapsAreTheReferences) {
  if (!there_is("codes.safetensors")) return;
  const auto codes = io::open_safetensors(kQuantFolder + "codes.safetensors");
  const auto expect = [&](const std::string& name, const at::Tensor& map) {
    EXPECT_TRUE(at::equal(map, io::read_tensor(*codes, name))) << name;
  };
  expect("nf4", tensor_of(four_bit_values(FourBitType::kNf4)));
  expect("fp4", tensor_of(four_bit_values(FourBitType::kFp4)));
  expect("dynamic_signed", tensor_of(dynamic_map(true)));
  expect("dynamic_unsigned", tensor_of(dynamic_map(false)));
}

TEST(QuantGolden, FourBitMatricesHaveTheReferencesBytesAndValues) {
  if (!there_is("bits4.safetensors")) return;
  const auto file = io::open_safetensors(kQuantFolder + "bits4.safetensors");
  const auto cases = nlohmann::json::parse(read_file(kQuantFolder + "expect.json")).at("cases");
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, settings] : cases.items()) {
    SCOPED_TRACE(name);
    const auto read = [&, &prefix = name](const std::string& leaf) { return io::read_tensor(*file, prefix + leaf); };
    const bool nested = settings.at("nested");
    const auto codec = four_bit_codec(
        {.type = type_of(settings.at("quant_type")), .block = settings.at("blocksize"), .nested = nested});
    const auto x = read(".x");
    const auto packed = tensor::pack(codec, x.view({-1, x.size(-1)}));
    EXPECT_TRUE(equal_bytes(packed.fields[0], read(".q")));
    EXPECT_EQ(packed.fields[0].sizes(), read(".q").sizes());
    if (nested) {
      EXPECT_TRUE(equal_bytes(packed.fields[1], read(".absmax_u8")));
      EXPECT_TRUE(equal_bytes(packed.fields[2], read(".nested_absmax")));
      EXPECT_TRUE(equal_bytes(packed.fields[3], read(".nested_offset")));
    } else {
      EXPECT_TRUE(equal_bytes(packed.fields[1], read(".absmax")));
    }
    EXPECT_TRUE(at::equal(tensor::unpack(packed, x.scalar_type()), read(".dequant").view({-1, x.size(-1)})));
  }
}

TEST(QuantGolden, ValuesBetweenTwoCodesTakeTheReferences) {
  if (!there_is("bits4_edges.safetensors")) return;
  const auto file = io::open_safetensors(kQuantFolder + "bits4_edges.safetensors");
  for (const std::string type : {"nf4", "fp4"}) {
    const auto codec = four_bit_codec({.type = type_of(type)});
    const auto edges = tensor::pack(codec, io::read_tensor(*file, type + ".x").view({1, -1}));
    EXPECT_TRUE(equal_bytes(edges.fields[0], io::read_tensor(*file, type + ".q"))) << type;
    const auto zeros = tensor::pack(codec, at::zeros({1, 64}));
    EXPECT_TRUE(equal_bytes(zeros.fields[0], io::read_tensor(*file, type + ".zeros.q"))) << type;
    EXPECT_TRUE(at::equal(tensor::unpack(zeros, at::kFloat), at::zeros({1, 64}))) << type;
  }
}

TEST(QuantGolden, EightBitBlocksHaveTheReferencesBytesAndValues) {
  if (!there_is("blockwise8.safetensors")) return;
  const auto file = io::open_safetensors(kQuantFolder + "blockwise8.safetensors");
  int cases = 0;
  for (const auto& info : file->tensors()) {
    if (!info.name.ends_with(".q")) continue;
    ++cases;
    SCOPED_TRACE(info.name);
    const auto name = info.name.substr(0, info.name.size() - 2);
    const auto split = name.rfind("_b");
    const auto block = std::stoll(name.substr(split + 2));
    const bool with_signs = name.starts_with("dynamic_signed");
    const auto x = io::read_tensor(*file, name.substr(0, split) + ".x").contiguous();
    auto absmax = at::empty({blocks_of(x.numel(), block)});
    auto codes = at::empty(x.sizes(), at::kByte);
    encode_dynamic(with_signs, x.const_data_ptr<float>(), x.numel(), block, absmax.mutable_data_ptr<float>(),
                   codes.mutable_data_ptr<std::uint8_t>());
    EXPECT_TRUE(equal_bytes(codes, io::read_tensor(*file, info.name)));
    EXPECT_TRUE(equal_bytes(absmax, io::read_tensor(*file, name + ".absmax")));
    auto values = at::empty(x.sizes());
    decode_dynamic(with_signs, {codes.const_data_ptr<std::uint8_t>(), absmax.const_data_ptr<float>(), block}, 0,
                   x.numel(), values.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(values, io::read_tensor(*file, name + ".dequant")));
  }
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace tessera::quant
