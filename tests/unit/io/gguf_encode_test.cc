// Blocks that are written, against the gguf package's and against what they were made of; whole files read back.
#include "io/gguf_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "io/gguf.h"
#include "io/gguf_blocks.h"
#include "io/gguf_writer.h"
#include "support/temp_folder.h"

namespace tessera::io {
namespace {

/// About normal, the same everywhere.
std::vector<float> sample_values(int n, double seed) {
  std::vector<float> values;
  for (int i = 0; i < n; ++i) {
    double sum = 0;
    for (int k = 0; k < 6; ++k) sum += std::sin((i * 6 + k) * 12.9898 + seed * 78.233) * 0.7;
    values.push_back(static_cast<float>(sum));
  }
  return values;
}

std::vector<float> there_and_back(std::uint32_t type, const std::vector<float>& values) {
  const GgufBlock* block = gguf_block(type);
  std::vector<float> out(values.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(block->bytes));
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(block->elements)) {
    gguf_encoder(type)(values.data() + at, bytes.data());
    block->dequantize(bytes.data(), 1, out.data() + at);
  }
  return out;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += std::pow(found[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(error / size);
}

TEST(GgufEncode, EveryFormatKeepsWhatItsBitsCanKeep) {
  const auto values = sample_values(4096, 1);
  // Of normal values: rounding to a grid of 2^bits levels over a block, less than this.
  const std::vector<std::pair<std::uint32_t, double>> limits = {{8, 0.007}, {14, 0.022}, {13, 0.042},
                                                                {7, 0.045}, {6, 0.05},   {12, 0.085}};
  double before = 0;
  for (const auto& [type, limit] : limits) {
    const double error = relative_error(there_and_back(type, values), values);
    EXPECT_LT(error, limit) << gguf_type_name(type);
    EXPECT_GT(error, limit / 3) << gguf_type_name(type) << ": the limit says nothing";
    before = error;
  }
  EXPECT_GT(before, 0);
}

TEST(GgufEncode, BlocksOfOneValueAndOfOutliersComeBack) {
  for (const std::uint32_t type : {6u, 7u, 8u, 12u, 13u, 14u}) {
    const std::vector<float> zeros(256, 0.0f);
    EXPECT_EQ(there_and_back(type, zeros), zeros) << gguf_type_name(type);
    for (const float constant : {0.5f, -0.5f}) {
      const std::vector<float> same(256, constant);
      EXPECT_LT(relative_error(there_and_back(type, same), same), 0.02) << gguf_type_name(type) << constant;
    }
    auto spiked = sample_values(256, 2);
    spiked[77] = 40;
    const auto back = there_and_back(type, spiked);
    EXPECT_NEAR(back[77], 40, 0.5) << gguf_type_name(type);
  }
}

// gguf.quants.quantize(values, Q8_0) of gguf 0.19 for x[i] = (i * 37 % 64 - 31) / 16.
TEST(GgufEncode, Q8_0HasTheBytesOfTheGgufPackage) {
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i * 37 % 64 - 31) / 16);
  std::vector<std::byte> bytes(34);
  gguf_encoder(8)(values.data(), bytes.data());
  const std::vector<int> expected = {8,  36,  133, 24,  173, 64, 212, 103, 252, 145, 36,  185, 75, 224, 115, 8,   157,
                                     48, 196, 87,  236, 127, 20, 169, 60,  208, 99,  248, 141, 32, 181, 71,  220, 111};
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << i;
}

// ctest runs it at each level of instructions.
TEST(GgufEncode, BytesAreEqualOnEveryProcessor) {
  std::vector<float> values;  // of integers alone, which have the same bits everywhere
  for (std::uint32_t i = 0; i < 2048; ++i)
    values.push_back(static_cast<float>(static_cast<int>(i * 2654435761u >> 12 & 1023) - 400) *
                     static_cast<float>(1 + i / 256) / 1024);
  std::map<std::uint32_t, std::uint64_t> sums;
  for (const std::uint32_t type : {6u, 7u, 8u, 12u, 13u, 14u}) {
    const GgufBlock* block = gguf_block(type);
    std::vector<std::byte> bytes(static_cast<std::size_t>(block->bytes));
    std::uint64_t& sum = sums[type] = 14695981039346656037u;  // FNV-1a
    for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(block->elements)) {
      gguf_encoder(type)(values.data() + at, bytes.data());
      for (const auto b : bytes) sum = (sum ^ std::to_integer<std::uint64_t>(b)) * 1099511628211u;
    }
  }
  const std::map<std::uint32_t, std::uint64_t> expected = {{6, 11962277838802533167u},  {7, 11431765416317606588u},
                                                           {8, 17069662080795126274u},  {12, 17468266816011202162u},
                                                           {13, 17929381531804658119u}, {14, 1033533073409392688u}};
  EXPECT_EQ(sums, expected);
}

TEST(GgufWriter, AFileReadsBackAsItWasPlanned) {
  const test::TempFolder folder("gguf_writer");
  const std::string path = folder.path() + "/m.gguf";
  const auto values = sample_values(2 * 64, 3);
  GgufWriter writer(path,
                    {{"general.architecture", std::string("llama")},
                     {"a.count", std::uint32_t{7}},
                     {"a.eps", 0.5f},
                     {"a.on", true},
                     {"a.words", std::vector<std::string>{"x", "yz", ""}},
                     {"a.ids", std::vector<std::int32_t>{1, -2}},
                     {"a.scores", std::vector<float>{0.25f}}},
                    {{"half", {2, 64}, kGgufF16}, {"norm", {3}, kGgufF32}, {"packed", {2, 64}, 8}});
  writer.write(values.data());
  writer.write(values.data());
  writer.write(values.data());
  EXPECT_FALSE(std::filesystem::exists(path)) << "it has no name before it is whole";
  writer.commit();
  const auto file = open_gguf(path);
  const GgufHeader& header = file->header();
  EXPECT_EQ(header.text("general.architecture"), "llama");
  EXPECT_EQ(header.integer("a.count"), 7);
  EXPECT_EQ(header.number("a.eps"), 0.5);
  EXPECT_EQ(header.boolean("a.on"), true);
  EXPECT_EQ(*header.texts("a.words"), (std::vector<std::string>{"x", "yz", ""}));
  EXPECT_EQ(*header.integers("a.ids"), (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(*header.numbers("a.scores"), std::vector<double>{0.25});
  EXPECT_EQ(file->find("packed")->shape, (std::vector<std::int64_t>{2, 64}));
  EXPECT_EQ(file->type_of("packed"), "Q8_0");
  for (const char* name : {"half", "packed", "norm"}) {
    const auto read = read_tensor(*file, name).to(at::kFloat).reshape(-1).contiguous();
    const std::vector<float> found(read.const_data_ptr<float>(), read.const_data_ptr<float>() + read.numel());
    const std::vector<float> expected(values.begin(), values.begin() + read.numel());
    EXPECT_LT(relative_error(found, expected), 0.007) << name;
  }
}

}  // namespace
}  // namespace tessera::io
