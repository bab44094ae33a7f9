#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "io/pickle.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

std::string torch_data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/torch_bin/" + name;
}

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const DataError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(TorchFile, HoldsTheSameTensorsAsSafetensors) {
  const auto bin = open_weights(torch_data("state_dict.bin")),
             plain = open_weights(torch_data("state_dict.safetensors"));
  ASSERT_EQ(bin->tensors().size(), plain->tensors().size());
  for (const auto& info : plain->tensors()) {
    ASSERT_NE(bin->find(info.name), nullptr) << info.name;
    EXPECT_EQ(bin->find(info.name)->shape, info.shape) << info.name;
    EXPECT_EQ(bin->find(info.name)->dtype, info.dtype) << info.name;
    const auto a = read_tensor(*bin, info.name), b = read_tensor(*plain, info.name);
    EXPECT_TRUE(b.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), b.nbytes()) == 0) << info.name;
  }
}

TEST(TorchFile, ReadsRangesOfViews) {
  const auto bin = open_weights(torch_data("state_dict.bin"));
  for (const char* name : {"transposed", "slice", "expanded", "shared.b"}) {
    const auto whole = read_tensor(*bin, name).view({-1});
    for (std::int64_t begin = 0; begin < whole.numel(); ++begin) {
      auto part = at::empty({whole.numel() - begin}, at::TensorOptions().dtype(at::kDouble));
      bin->read(name, begin, part);
      EXPECT_TRUE(at::equal(part, whole.narrow(0, begin, part.numel()).to(at::kDouble))) << name << begin;
    }
  }
}

TEST(TorchFile, MapsWhatIsContiguous) {
  const auto bin = open_weights(torch_data("state_dict.bin"));
  const auto mapped = bin->map("linear.weight");
  ASSERT_TRUE(mapped.has_value());
  const auto t = read_tensor(*bin, "linear.weight");
  EXPECT_EQ(0, std::memcmp(mapped->data, t.const_data_ptr(), t.nbytes()));
  EXPECT_FALSE(bin->map("transposed").has_value());
}

TEST(TorchFile, RefusesGlobalsByNameAndRunsNothing) {
  const auto text = message([] { open_weights(torch_data("evil.bin")); });
  EXPECT_NE(text.find("evil.bin"), std::string::npos) << text;
  EXPECT_NE(text.find("posix.system"), std::string::npos) << text;
  EXPECT_NE(text.find("nothing was run"), std::string::npos) << text;
  EXPECT_FALSE(fs::exists("/tmp/tessera_evil"));
}

TEST(TorchFile, RefusesWhatIsNotAStateDict) {
  EXPECT_NE(message([] { open_weights(torch_data("list.bin")); }).find("expected a dict"), std::string::npos);
  EXPECT_NE(message([] { open_weights(torch_data("nested.bin")); }).find("no tensors at the top level"),
            std::string::npos);
  EXPECT_NE(message([] { open_weights(torch_data("legacy.bin")); }).find("since version 1.6"), std::string::npos);
  EXPECT_NE(message([] { open_weights(torch_data("compressed.bin")); }).find("is compressed"), std::string::npos);
}

class DamagedTorchFile : public testing::Test {
 protected:
  DamagedTorchFile() : folder_(fs::temp_directory_path() / ("tessera_bin_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~DamagedTorchFile() override { fs::remove_all(folder_); }
  std::string write(const std::string& bytes) const {
    const auto file = (folder_ / "x.bin").string();
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  fs::path folder_;
};

TEST_F(DamagedTorchFile, EveryPrefixIsAnError) {
  const auto good = read_file(torch_data("one.bin"));
  for (std::size_t n = 0; n < good.size(); n += 5)
    EXPECT_NE(message([&] { open_weights(write(good.substr(0, n))); }), "accepted") << n;
}

TEST_F(DamagedTorchFile, AChangedPickleFailsItsChecksum) {
  auto bytes = read_file(torch_data("one.bin"));
  bytes[bytes.find("FloatStorage")] = 'f';
  EXPECT_NE(message([&] { open_weights(write(bytes)); }).find("checksum of entry 'one/data.pkl'"), std::string::npos);
}

TEST_F(DamagedTorchFile, ShardedIndexNamesWhatIsMissing) {
  fs::copy_file(torch_data("one.bin"), folder_ / "pytorch_model-00001-of-00001.bin");
  std::ofstream(folder_ / "pytorch_model.bin.index.json")
      << R"({"weight_map":{"w":"pytorch_model-00001-of-00001.bin"}})";
  EXPECT_EQ(open_weights(folder_.string())->tensors().size(), 1u);
  std::ofstream(folder_ / "pytorch_model.bin.index.json")
      << R"({"weight_map":{"v":"pytorch_model-00001-of-00001.bin"}})";
  EXPECT_NE(message([&] { open_weights(folder_.string()); }).find("tensor 'v'"), std::string::npos);
}

// Pickles by hand. S: a storage of 4 floats; the tensor's offset, sizes and strides follow.
std::string tensor_pickle(const std::string& view) {
  return std::string("\x80\x02}X\x01\0\0\0w", 9) + "ctorch._utils\n_rebuild_tensor_v2\n((" +
         std::string("X\x07\0\0\0storage", 12) + "ctorch\nFloatStorage\n" +
         std::string("X\x01\0\0\0000X\x03\0\0\0cpuK\x04tQ", 18) + view + "\x89}tRs.";
}

TEST(Pickle, ReadsAHandMadeTensor) {
  const auto entries = read_state_dict_pickle(tensor_pickle("K\x01(K\x03t(K\x01t"), "f");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].name, "w");
  EXPECT_EQ(entries[0].tensor.offset, 1);
  EXPECT_EQ(entries[0].tensor.shape, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(entries[0].tensor.storage_bytes, 16u);
}

TEST(Pickle, DamageIsAnErrorThatSaysWhere) {
  const auto read = [](const std::string& bytes) { return message([&] { read_state_dict_pickle(bytes, "f"); }); };
  const auto good = tensor_pickle("K\x01(K\x03t(K\x01t");
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_NE(read(good.substr(0, n)), "accepted");
  EXPECT_NE(read("").find("at byte 0"), std::string::npos);
  EXPECT_NE(read("R.").find("missing on the stack"), std::string::npos);
  EXPECT_NE(read("t.").find("mark is missing"), std::string::npos);
  EXPECT_NE(read("h\x05.").find("before it is remembered"), std::string::npos);
  EXPECT_NE(read("}}R.").find("not a listed name"), std::string::npos);
  EXPECT_NE(read(std::string("X\xff\xff\xff\xff.", 6)).find("are left"), std::string::npos);
  EXPECT_NE(read("\x80\x09}.").find("protocol 9"), std::string::npos);
  EXPECT_NE(read("i").find("operation 0x69"), std::string::npos);  // INST
  EXPECT_NE(read("cbuiltins\neval\n.").find("builtins.eval"), std::string::npos);
  EXPECT_NE(read("ctorch\nload\n.").find("torch.load"), std::string::npos);
  EXPECT_NE(read("].").find("expected a dict"), std::string::npos);
  // Nests and cycles of any depth are only indices.
  EXPECT_NE(read(std::string(1000000, ']') + ".").find("expected a dict"), std::string::npos);
  EXPECT_NE(read("]q\x01h\x01"
                 "a.")
                .find("expected a dict"),
            std::string::npos);
}

TEST(Pickle, WhatIsRememberedCannotBeUsedForMoreThanMemoryHolds) {
  std::string list = std::string("]q\0(NN\x86q\1", 9), copies = "ccollections\nOrderedDict\nq\2";
  for (int i = 0; i < 20'000; ++i) list += "h\1";
  for (int i = 0; i < 2'000; ++i) copies += std::string("h\2h\0\x85R0", 7);
  EXPECT_NE(
      message([&] { read_state_dict_pickle(list + "e" + copies + ".", "f"); }).find("its pickle makes more than 33"),
      std::string::npos);
  std::string sizes = "(";
  for (int i = 0; i < 65; ++i) sizes += "K\1";
  EXPECT_NE(message([&] {
              read_state_dict_pickle(tensor_pickle("K\1" + sizes + "t(K\1t"), "f");
            }).find("65 dimensions; at most 64 are allowed"),
            std::string::npos);
  std::string nested = "}", closed;
  for (int i = 0; i < 60'000; ++i, closed += "s") nested += std::string("U\1a}", 4);
  EXPECT_NE(message([&] { read_nested_pickle(nested + closed + ".", "f"); }).find("its names are too long"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::io
