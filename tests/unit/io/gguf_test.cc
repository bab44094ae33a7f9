#include "io/gguf.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include "base/file.h"
#include "io/gguf_blocks.h"
#include "io/resized_source.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

std::string data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/gguf/" + name;
}

/// Bytes of a GGUF file, piece by piece.
struct Bytes {
  std::string text = "GGUF";
  template <class T>
  Bytes& add(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    text.append(raw, sizeof value);
    return *this;
  }
  Bytes& add_string(const std::string& s) {
    add<std::uint64_t>(s.size());
    text += s;
    return *this;
  }
  Bytes& header(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return add(version).add(tensors).add(keys);
  }
  Bytes& tensor(const std::string& name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    add_string(name).add<std::uint32_t>(static_cast<std::uint32_t>(dims.size()));
    for (auto d : dims) add(d);
    return add(type).add(offset);
  }
  Bytes& pad_and_fill(std::size_t bytes) {
    text.resize((text.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  std::string message() const {
    const auto path = (std::filesystem::path(testing::TempDir()) / "gguf_test.gguf").string();
    std::ofstream(path, std::ios::binary) << text;
    try {
      open_gguf(path);
    } catch (const DataError& e) {
      EXPECT_EQ(e.file, path);
      return e.what();
    }
    return "";
  }
};

TEST(Gguf, ReadsEveryMetadataType) {
  const auto header = read_gguf_header(data("blocks.gguf"));
  EXPECT_EQ(header.text("general.architecture"), "llama");
  EXPECT_EQ(header.integer("t.u8"), 250);
  EXPECT_EQ(header.integer("t.i8"), -5);
  EXPECT_EQ(header.integer("t.u16"), 65000);
  EXPECT_EQ(header.integer("t.i16"), -300);
  EXPECT_EQ(header.integer("t.u32"), 4000000000);
  EXPECT_EQ(header.integer("t.i32"), -70000);
  EXPECT_EQ(header.integer("t.u64"), std::int64_t{1} << 62);
  EXPECT_EQ(header.integer("t.i64"), -(std::int64_t{1} << 62));
  EXPECT_EQ(header.number("t.f32"), 0.5);
  EXPECT_EQ(header.number("t.f64"), 1e-300);
  EXPECT_EQ(header.number("t.i8"), -5.0);
  EXPECT_EQ(header.boolean("t.bool"), true);
  EXPECT_EQ(header.text("t.string"), "h\xc3\xa9llo");
  EXPECT_EQ(*header.integers("t.ints"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(*header.numbers("t.floats"), (std::vector<double>{0.25, 1.5}));
  EXPECT_EQ(*header.texts("t.strings"), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_EQ(header.integer("absent"), std::nullopt);
  EXPECT_THROW(header.integer("t.string"), DataError);
}

// Expected values: the gguf Python package.
TEST(Gguf, DequantisesEveryFormatToTheBit) {
  for (const std::string name : {"blocks", "grid_blocks"}) {
    const auto file = open_gguf(data(name + ".gguf"));
    const auto expected = open_safetensors(data(name + ".safetensors"));
    ASSERT_EQ(file->tensors().size(), expected->tensors().size());
    for (const auto& info : expected->tensors()) {
      const auto got = read_tensor(*file, info.name);
      EXPECT_EQ(got.sizes(), at::IntArrayRef(info.shape)) << info.name;
      EXPECT_TRUE(at::equal(got.to(at::kFloat), read_tensor(*expected, info.name).to(at::kFloat))) << info.name;
    }
  }
}

TEST(Gguf, ReadsAnyRangeIntoAnyDtype) {
  const auto file = open_gguf(data("blocks.gguf"));
  for (const auto& info : file->tensors()) {
    const auto whole = read_tensor(*file, info.name).view(-1).to(at::kFloat);
    for (std::int64_t begin : {0, 1, 31, 32, 100, 191})
      for (std::int64_t count : {0, 1, 33, 64, 1})
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
          if (begin + count > info.numel()) continue;
          const auto part = at::empty({count}, dtype);
          file->read(info.name, begin, part);
          EXPECT_TRUE(at::equal(part, whole.narrow(0, begin, count).to(dtype))) << info.name << ' ' << begin;
        }
    EXPECT_THROW(file->read(info.name, info.numel(), at::empty({1})), DataError);
  }
}

TEST(Gguf, AFileThatIsCutWhileItIsReadIsNamed) {
  const test::TempFolder temp("gguf_cut");
  const std::string path = temp.path() + "/cut.gguf";
  std::filesystem::copy_file(data("blocks.gguf"), path);
  const auto file = open_gguf(path);
  const auto& info = *std::find_if(file->tensors().begin(), file->tensors().end(),
                                   [](const TensorInfo& t) { return t.packed_bytes > 0; });
  const auto out = at::empty({info.numel()});
  file->read(info.name, 0, out);
  std::filesystem::resize_file(path, 0);
  try {
    file->read(info.name, 0, out);
    ADD_FAILURE() << "no error";
  } catch (const DataError& e) {
    EXPECT_EQ(e.file, path);
    EXPECT_NE(std::string(e.what()).find("cannot be read at byte "), std::string::npos) << e.what();
  }
}

TEST(Gguf, MapsWhatIsNotQuantised) {
  const auto file = open_gguf(data("blocks.gguf"));
  EXPECT_FALSE(file->map("t.Q4_K"));
  for (const char* name : {"t.F32", "t.F16", "t.BF16"}) {
    const auto mapped = file->map(name);
    ASSERT_TRUE(mapped) << name;
    const auto t = read_tensor(*file, name);
    EXPECT_EQ(std::memcmp(mapped->data, t.const_data_ptr(), t.nbytes()), 0) << name;
  }
  EXPECT_EQ(file->type_of("t.Q6_K"), "Q6_K");
}

TEST(Gguf, ReadsAndMapsPackedBlocksAsTheyAre) {
  const auto file = open_gguf(data("blocks.gguf"));
  const auto resized = resized_source(joined_source({memory_source({{"a", at::zeros({1})}}), file}), {{"a", 2}});
  const std::map<std::string, std::uint32_t> types = {{"t.Q4_0", 2}, {"t.Q4_K", 12}, {"t.Q6_K", 14}};
  for (const auto& [name, type] : types) {
    const auto& info = *file->find(name);
    const auto* block = gguf_block(type);
    ASSERT_EQ(info.nbytes(), info.numel() / block->elements * block->bytes) << name;
    const auto bytes = at::empty({info.nbytes()}, at::kByte);
    const auto first = block->bytes;
    resized->read_bytes(name, 0, bytes.narrow(0, 0, first));
    resized->read_bytes(name, first, bytes.narrow(0, first, info.nbytes() - first));
    const auto mapped = resized->map_bytes(name);
    ASSERT_TRUE(mapped) << name;
    EXPECT_EQ(std::memcmp(mapped->data, bytes.const_data_ptr(), bytes.nbytes()), 0) << name;
    const auto values = at::empty({info.numel()});
    const auto* blocks = static_cast<const std::byte*>(bytes.const_data_ptr());
    block->dequantize(blocks, info.numel() / block->elements, values.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(values, read_tensor(*file, name).view(-1))) << name;
    for (const auto& [begin, count] : {std::pair{std::int64_t{1}, std::int64_t{3}},
                                       {block->elements - 1, block->elements + 2},
                                       {block->elements, info.numel() - block->elements - 1}}) {
      if (begin + count > info.numel()) continue;
      const auto some = at::empty({count});
      block->dequantize_elements(blocks, begin, count, some.mutable_data_ptr<float>());
      EXPECT_TRUE(at::equal(some, values.narrow(0, begin, count))) << name << ", from " << begin;
    }
    EXPECT_THROW(file->read_bytes(name, info.nbytes(), at::empty({1}, at::kByte)), DataError);
  }
}

// On every processor (TESSERA_CPU_LEVEL).
TEST(GgufBlocks, AScaleOfFloat16IsReadAsItIs) {
  const auto value_with = [](std::uint32_t scale) {
    std::array<std::byte, 34> block{std::byte(scale & 0xFF), std::byte(scale >> 8), std::byte{1}};  // Q8_0
    std::array<float, 32> values{};
    gguf_block(8)->dequantize(block.data(), 1, values.data());
    return values[0];
  };
  EXPECT_EQ(value_with(0x3C00), 1.0f);
  EXPECT_EQ(value_with(0xC500), -5.0f);
  EXPECT_EQ(value_with(0x7BFF), 65504.0f);
  EXPECT_EQ(value_with(0x0400), 0x1p-14f);
  EXPECT_EQ(value_with(0x0001), 0x1p-24f);
  EXPECT_EQ(value_with(0x83FF), -0x3FFp-24f);
  EXPECT_EQ(value_with(0x7C00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(value_with(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(value_with(0x7E00)));
}

TEST(GgufDamaged, SaysWhatIsWrongAndWhere) {
  const auto expect = [](const Bytes& bytes, const std::string& part) {
    const auto message = bytes.message();
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
  };
  expect({"PK"}, "not a GGUF file");
  expect(Bytes().header(0, 0, 1), "GGUF version 1; 2 and 3 are read");
  expect(Bytes().add<std::uint32_t>(0x03000000u).header(0, 0), "big-endian");
  expect(Bytes().header(std::uint64_t{1} << 60, 0), "bytes are left in the file");
  expect(Bytes().header(0, 1).add<std::uint64_t>(1 << 20).add<std::uint64_t>(0), "a string of 1048576 bytes");
  expect(Bytes().header(0, 1).add_string("k").add<std::uint32_t>(13).add<std::uint64_t>(0),
         "key 'k': byte 37: value type 13");
  expect(Bytes().header(0, 1).add_string("k").add<std::uint32_t>(9).add<std::uint32_t>(9).add<std::uint64_t>(0),
         "arrays of arrays");
  expect(Bytes().header(0, 1).add_string("k").add<std::uint32_t>(9).add<std::uint32_t>(4).add(~std::uint64_t{0}),
         "an array of 18446744073709551615 elements");
  expect(Bytes().header(0, 1).add_string("k").add<std::uint32_t>(7).add<std::uint8_t>(2), "a truth value of 2");
  expect(Bytes().header(0, 1).add_string("k").add<std::uint32_t>(10).add(~std::uint64_t{0}), "exceeds 2^63 - 1");
  Bytes twice;
  twice.header(0, 2);
  for (int i = 0; i < 2; ++i) twice.add_string("k").add<std::uint32_t>(7).add<std::uint8_t>(1);
  expect(twice, "key 'k'");
  expect(Bytes().header(1, 0).tensor("w", {4}, 0, 0).pad_and_fill(8), "tensor 'w': its 16 bytes");
  expect(Bytes().header(1, 0).tensor("w", {4}, 0, 32).pad_and_fill(16), "tensor 'w'");
  expect(Bytes().header(1, 0).tensor("w", {4}, 0, 1).pad_and_fill(64), "expected a multiple of 32");
  expect(Bytes().header(1, 0).tensor("w", {33}, 2, 0).pad_and_fill(640), "rows of a multiple of 32 elements, found 33");
  expect(Bytes().header(1, 0).tensor("w", {256}, 40, 0).pad_and_fill(640), "stored as NVFP4 (type 40)");
  expect(Bytes().header(1, 0).tensor("w", {256}, 99, 0).pad_and_fill(640), "an unknown type (type 99)");
  const auto huge = std::uint64_t{1} << 62;
  expect(Bytes().header(1, 0).tensor("w", {huge, huge}, 0, 0).pad_and_fill(640), "exceeds 2^63");
  expect(Bytes().header(1, 0).tensor("w", {1, 1, 1, 1, 1}, 0, 0).pad_and_fill(640), "5 dimensions");
  expect(Bytes().header(2, 0).tensor("w", {4}, 0, 0).tensor("w", {4}, 0, 0).pad_and_fill(640), "names it twice");
}

TEST(GgufDamaged, EveryTruncationIsAnError) {
  const auto whole = read_file(data("blocks.gguf"));
  const auto path = (std::filesystem::path(testing::TempDir()) / "gguf_cut.gguf").string();
  for (std::size_t size = 0; size < whole.size() - 32; size += size < 1200 ? 7 : 97) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_THROW(open_gguf(path), DataError) << size;
  }
}

}  // namespace
}  // namespace tessera::io
