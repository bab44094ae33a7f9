#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  Safetensors() {
    folder_ = fs::temp_directory_path() / ("tessera_st_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  ~Safetensors() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // A file with this header text (length prefixed) and `data` zero bytes.
  std::string craft(const std::string& header, std::size_t data, std::uint64_t length = 0) {
    const auto file = path("crafted.safetensors");
    std::ofstream out(file, std::ios::binary);
    if (length == 0) length = header.size();
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header << std::string(data, '\0');
    return file;
  }
  void expect_error(const std::string& file, const std::vector<std::string>& parts) {
    try {
      open_safetensors(file);
      ADD_FAILURE() << "accepted";
    } catch (const DataError& e) {
      for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_EQ(e.file, file);
    }
  }
  fs::path folder_;
};

std::string slurp(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST_F(Safetensors, RoundTripsEveryDtypeAndShape) {
  const at::ScalarType dtypes[] = {at::kBool,     at::kByte,   at::kChar,          at::kShort,
                                   at::kInt,      at::kLong,   at::kHalf,          at::kFloat,
                                   at::kBFloat16, at::kDouble, at::kComplexFloat,  at::kUInt16,
                                   at::kUInt32,   at::kUInt64, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto d : dtypes) tensors.emplace_back(std::string("t.") + c10::toString(d), at::arange(6).view({2, 3}).to(d));
  tensors.emplace_back("scalar", at::arange(1, 2).view({}).to(at::kFloat));
  tensors.emplace_back("empty", at::zeros({0, 4}));
  tensors.emplace_back("quote\"\\\n\xc3\xa9", at::zeros({1}));
  write_safetensors(path("a.safetensors"), tensors);
  auto source = open_safetensors(path("a.safetensors"));
  EXPECT_EQ(source->tensors().size(), tensors.size());
  for (const auto& [name, t] : tensors) {
    auto got = read_tensor(*source, name);
    EXPECT_EQ(got.sizes(), t.sizes()) << name;
    EXPECT_EQ(got.scalar_type(), t.scalar_type()) << name;
    if (t.nbytes() == 0) continue;  // no pointer to compare
    EXPECT_EQ(0, std::memcmp(got.const_data_ptr(), t.const_data_ptr(), t.nbytes())) << name;
  }
}

TEST_F(Safetensors, ReadsAnyRangeConverted) {
  const auto t = at::randn({700, 1000});  // several conversion chunks
  write_safetensors(path("a.safetensors"), {{"w", t}});
  auto source = open_safetensors(path("a.safetensors"));
  for (auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    auto out = at::empty({600001}, at::TensorOptions().dtype(dtype));
    source->read("w", 12345, out);
    EXPECT_TRUE(at::equal(out, t.view({-1}).narrow(0, 12345, 600001).to(dtype)));
  }
  EXPECT_THROW(source->read("w", 699999, at::empty({2})), DataError);
  EXPECT_THROW(source->read("w", -1, at::empty({2})), DataError);
  EXPECT_THROW(source->read("nope", 0, at::empty({2})), DataError);
  EXPECT_THROW(read_tensor(*source, "nope"), DataError);
}

TEST_F(Safetensors, MapsInPlaceAndKeepsTheFileUntouched) {
  const auto t = at::randn({64});
  write_safetensors(path("a.safetensors"), {{"w", t}});
  const auto before = slurp(path("a.safetensors"));
  auto source = open_safetensors(path("a.safetensors"));
  auto mapped = source->map("w");
  source.reset();
  ASSERT_TRUE(mapped.has_value());
  EXPECT_EQ(0, std::memcmp(mapped->data, t.const_data_ptr(), t.nbytes()));
  mapped->data[0] = std::byte{0xff};
  EXPECT_EQ(slurp(path("a.safetensors")), before);
}

TEST_F(Safetensors, WriterLeavesNothingWithoutCommit) {
  {
    SafetensorsWriter writer(path("a.safetensors"), {{"w", at::kFloat, {4}, ""}});
    EXPECT_THROW(writer.write("w", at::zeros({2})), InternalError);
    EXPECT_THROW(writer.commit(), InternalError);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THROW(write_safetensors(path("no/such/folder.safetensors"), {{"w", at::zeros({1})}}), CheckpointError);
}

TEST_F(Safetensors, WriterTakesTensorsInAnyOrder) {
  SafetensorsWriter writer(path("a.safetensors"),
                           {{"b", at::kFloat, {4}, ""}, {"none", at::kFloat, {0}, ""}, {"a", at::kLong, {2}, ""}});
  EXPECT_THROW(writer.write("c", at::zeros({2})), InternalError);
  writer.write("b", at::arange(4).to(at::kFloat));
  EXPECT_THROW(writer.write("b", at::zeros({4})), InternalError);
  writer.write("none", at::zeros({0}));
  writer.write("a", at::arange(2));
  writer.commit();
  auto source = open_safetensors(path("a.safetensors"));
  EXPECT_TRUE(at::equal(read_tensor(*source, "b"), at::arange(4).to(at::kFloat)));
  EXPECT_TRUE(at::equal(read_tensor(*source, "a"), at::arange(2)));
}

TEST_F(Safetensors, RefusesDamagedFiles) {
  expect_error(craft("", 0), {"does not start with '{'"});
  expect_error(craft("{}", 0, 1ull << 40), {"at most 100000000"});
  expect_error(craft("{}", 0, 1000), {"truncated"});
  expect_error(craft("{\"a\":", 0), {"not a JSON object"});
  expect_error(craft(std::string(100000, '['), 0), {"does not start with '{'"});
  expect_error(craft("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0), {"JSON"});
  expect_error(craft(R"({"a":3})", 0), {"tensor 'a'", "must be an object"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2]}})", 8), {"tensor 'a'", "lacks"});
  expect_error(craft(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), {"tensor 'a'", "F33", "BF16"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), {"tensor 'a'", "need 8"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), {"tensor 'a'", "begin <= end"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), {"tensor 'a'", "shape"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8), {"tensor 'a'", "shape"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), {"tensor 'a'", "truncated"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9), {"9 bytes", "describes only 8"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12), {"tensor 'a'", "gap"});
  expect_error(
      craft(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          12),
      {"tensor 'b'", "overlap"});
  expect_error(
      craft(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
      {"'a' twice"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0), {"2^63"});
  expect_error(craft(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0), {"2^63"});
}

TEST_F(Safetensors, OpensAShardedFolder) {
  write_safetensors(path("model-00001-of-00002.safetensors"), {{"a", at::arange(3)}});
  write_safetensors(path("model-00002-of-00002.safetensors"), {{"b", at::arange(5)}});
  const auto index = path("model.safetensors.index.json");
  const auto write_index = [&](const std::string& b_file, const std::string& name = "b") {
    std::ofstream(index) << R"({"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors",")" << name
                         << "\":\"" << b_file << "\"}}";
  };
  write_index("model-00002-of-00002.safetensors");
  auto source = open_weights(folder_.string());
  ASSERT_EQ(source->tensors().size(), 2u);
  EXPECT_TRUE(at::equal(read_tensor(*source, "b"), at::arange(5)));
  EXPECT_EQ(source->find("b")->file, path("model-00002-of-00002.safetensors"));
  const auto message = [&] {
    try {
      open_weights(folder_.string());
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  write_index("model-00003-of-00002.safetensors");
  EXPECT_NE(message().find("model-00003-of-00002.safetensors, which does not exist"), std::string::npos) << message();
  write_index("model-00002-of-00002.safetensors", "c");
  EXPECT_NE(message().find("tensor 'c' should be in"), std::string::npos) << message();
  write_index("../x.safetensors");
  EXPECT_NE(message().find("beside the index"), std::string::npos) << message();
}

TEST_F(Safetensors, FolderWithoutWeightsListsWhatWasLookedFor) {
  try {
    open_weights(folder_.string());
    FAIL();
  } catch (const DataError& e) {
    for (const char* name :
         {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"})
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos);
  }
  EXPECT_THROW(open_weights(path("nothing")), DataError);
}

TEST_F(Safetensors, ReadsTheBytesOfAnyDtype) {
  const auto nan = at::empty({6}, at::kFloat);  // signalling, with a payload: arithmetic and casts would change it
  const std::uint32_t bits = 0x7fa12345;
  for (int i = 0; i < 6; ++i) std::memcpy(nan.mutable_data_ptr<float>() + i, &bits, 4);
  write_safetensors(path("a.safetensors"), {{"nan", nan}, {"codes", at::arange(7).to(at::kByte)}});
  const auto file = open_safetensors(path("a.safetensors")), memory = memory_source({{"nan", nan}});
  for (const auto& source : {file, memory}) {
    const auto part = at::empty({8}, at::kByte);
    source->read_bytes("nan", 12, part);
    EXPECT_EQ(std::memcmp(part.const_data_ptr(), nan.const_data_ptr<float>() + 3, 8), 0);
    EXPECT_THROW(source->read_bytes("nan", 20, part), DataError);
    EXPECT_THROW(source->read_bytes("none", 0, part), DataError);
  }
  const auto codes = at::empty({3}, at::kByte);
  file->read_bytes("codes", 4, codes);
  EXPECT_TRUE(at::equal(codes, at::arange(4, 7).to(at::kByte)));
}

TEST(MemorySource, BehavesLikeAFile) {
  auto source = memory_source({{"b", at::arange(4)}, {"a", at::randn({2, 2}).t()}});
  EXPECT_EQ(source->tensors()[0].name, "a");
  auto out = at::empty({2});
  source->read("b", 1, out);
  EXPECT_TRUE(at::equal(out, at::arange(1, 3).to(at::kFloat)));
  EXPECT_THROW(source->read("b", 3, out), DataError);
  EXPECT_TRUE(source->map("a").has_value());
}

}  // namespace
}  // namespace tessera::io
