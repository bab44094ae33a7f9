// Folders of torch.distributed.checkpoint: those of Accelerate are read, ours read back, damage is named.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "io/dcp_folder.h"
#include "io/torch_file.h"
#include "io/torch_file_writer.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

std::string accelerate_data(const std::string& name) {
  return std::string(TESSERA_TEST_DATA) + "/accelerate/" + name;
}

std::string dcp_folder() {
  const std::string folder = testing::TempDir() + "dcp_" + std::to_string(getpid());
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

template <class F>
std::string dcp_error(F f) {
  try {
    f();
  } catch (const DataError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Dcp, ReadsTheModelThatAccelerateSavedSharded) {
  const auto dcp = open_dcp(accelerate_data("pytorch_model_fsdp_0"));
  const auto expected = open_safetensors(accelerate_data("expect_model.safetensors"));
  ASSERT_EQ(dcp->tensors().size(), expected->tensors().size());
  for (const auto& info : expected->tensors()) {
    ASSERT_NE(dcp->find(info.name), nullptr) << info.name;
    EXPECT_TRUE(at::equal(read_tensor(*dcp, info.name), read_tensor(*expected, info.name))) << info.name;
  }
}

TEST(Dcp, ReadsRangesAcrossBoxes) {
  const auto dcp = open_dcp(accelerate_data("pytorch_model_fsdp_0"));
  const auto whole = read_tensor(*dcp, "lm_head.weight").view({-1});  // 50 x 24, cut after row 25
  for (const auto& [begin, end] : {std::pair{0, 1}, {599, 601}, {590, 620}, {600, 1200}, {1199, 1200}, {7, 7}}) {
    auto part = at::empty({end - begin}, at::TensorOptions().dtype(at::kDouble));
    dcp->read("lm_head.weight", begin, part);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, begin, end - begin).to(at::kDouble))) << begin;
  }
}

TEST(Dcp, ReadsTheOptimizerWithItsSteps) {
  const auto dcp = open_dcp(accelerate_data("v2/optimizer_0"));
  const auto expected = open_safetensors(accelerate_data("v2/expect_optimizer.safetensors"));
  for (const auto& info : expected->tensors()) {
    const auto dot = info.name.rfind('.');
    const std::string name = "state/" + info.name.substr(0, dot) + "/" + info.name.substr(dot + 1);
    ASSERT_NE(dcp->find(name), nullptr) << name;
    EXPECT_TRUE(at::equal(read_tensor(*dcp, name), read_tensor(*expected, info.name))) << name;
  }
}

TEST(TorchFile, ReadsTheWholeStateDictsOfAccelerate) {
  const auto model = make_stored_source(list_torch_file(accelerate_data("pytorch_model_fsdp.bin")));
  const auto expected = open_safetensors(accelerate_data("expect_model.safetensors"));
  for (const auto& info : expected->tensors())
    EXPECT_TRUE(at::equal(read_tensor(*model, info.name), read_tensor(*expected, info.name))) << info.name;
  const auto optimizer = make_stored_source(list_nested_torch_file(accelerate_data("optimizer.bin")));
  const auto state = open_safetensors(accelerate_data("expect_optimizer.safetensors"));
  EXPECT_TRUE(at::equal(read_tensor(*optimizer, "state/lm_head.weight/exp_avg_sq"),
                        read_tensor(*state, "lm_head.weight.exp_avg_sq")));
  EXPECT_EQ(read_tensor(*optimizer, "state/lm_head.weight/step").item<float>(), 5);
}

TEST(TorchFile, ListsTheFlatPartsOfFsdp1sLocalFiles) {
  const auto local = make_stored_source(list_nested_torch_file(accelerate_data("pytorch_model_fsdp_rank0.bin")));
  ASSERT_NE(local->find("_flat_param@0"), nullptr);
  EXPECT_EQ(local->find("_flat_param@0")->shape, std::vector<std::int64_t>{1212});
}

TEST(Dcp, BoxesOfARangeTileIt) {
  for (const auto& shape : {std::vector<std::int64_t>{7}, {3, 5}, {2, 3, 4}, {1, 6, 1, 2}}) {
    std::int64_t numel = 1;
    for (const auto s : shape) numel *= s;
    const auto positions = at::arange(numel).view(shape);
    for (std::int64_t begin = 0; begin < numel; ++begin) {
      for (std::int64_t end = begin; end <= numel; ++end) {
        std::int64_t at = begin;
        for (const auto& box : boxes_of_range(shape, begin, end)) {
          auto part = positions;
          for (std::size_t d = 0; d < shape.size(); ++d)
            part = part.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
          const auto flat = part.reshape({-1});
          ASSERT_TRUE(at::equal(flat, at::arange(at, at + flat.numel())));
          at += flat.numel();
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(Dcp, WhatIsWrittenIsReadBack) {
  const std::string folder = dcp_folder();
  const auto values = at::arange(60, at::kFloat), more = at::arange(8, at::kLong);
  std::vector<DcpMetadata> parts;
  for (const int rank : {0, 1}) {
    const std::string file = "__" + std::to_string(rank) + "_0.distcp";
    DcpFileWriter writer(folder, file);
    DcpLayout layout(file);
    const auto half = values.narrow(0, rank * 31, rank == 0 ? 31 : 29);
    writer.write({"model", "w"}, {5, 4, 3}, rank * 31, half);
    layout.add({"model", "w"}, at::kFloat, {5, 4, 3}, rank * 31, half.numel());
    if (rank == 1) {
      writer.write({"model", "b"}, {8}, 0, more);
      layout.add({"model", "b"}, at::kLong, {8}, 0, 8);
    }
    writer.commit();
    EXPECT_EQ(write_dcp_metadata(writer.metadata()), write_dcp_metadata(layout.metadata()));
    parts.push_back(writer.metadata());
  }
  write_file_atomically(folder + "/.metadata", write_dcp_metadata(joined_metadata(parts)));
  const auto source = open_dcp(folder);
  EXPECT_TRUE(at::equal(read_tensor(*source, "w"), values.view({5, 4, 3})));
  EXPECT_TRUE(at::equal(read_tensor(*source, "b"), more));

  fs::remove(folder + "/__1_0.distcp");
  EXPECT_NE(dcp_error([&] { open_dcp(folder); }).find("'__1_0.distcp', which does not exist; copy the files of all"),
            std::string::npos);
  write_file_atomically(folder + "/.metadata", write_dcp_metadata(parts[0]));
  EXPECT_NE(dcp_error([&] { read_tensor(*open_dcp(folder), "w"); }).find("are in no file"), std::string::npos);
  fs::resize_file(folder + "/__0_0.distcp", 100);
  EXPECT_NE(dcp_error([&] { open_dcp(folder); }), "accepted");
  fs::remove(folder + "/.metadata");
  EXPECT_NE(dcp_error([&] { open_dcp(folder); }).find("no .metadata"), std::string::npos);
  fs::remove_all(folder);
}

TEST(Dcp, RefusesPartsThatStandForOthersThatAreMissing) {
  const auto metadata = [](std::vector<DcpChunk> chunks) {
    return write_dcp_metadata({.tensors = {{"w", {"w"}, at::kFloat, {4, 4}, std::move(chunks)}}, .objects = {}});
  };
  const auto box = [](std::vector<std::int64_t> offsets, std::vector<std::int64_t> sizes) {
    return DcpChunk{std::move(offsets), std::move(sizes), "__0_0.distcp", 0, 64};
  };
  const auto error = [&](std::vector<DcpChunk> chunks) {
    return dcp_error([&] { parse_dcp_metadata(metadata(std::move(chunks)), "m"); });
  };
  EXPECT_EQ(error({box({0, 0}, {2, 4}), box({2, 0}, {2, 2}), box({2, 2}, {2, 2}), box({4, 0}, {0, 4})}), "accepted");
  const auto overlapping = error({box({0, 0}, {2, 4}), box({1, 3}, {2, 1})});
  EXPECT_NE(overlapping.find("m: "), std::string::npos) << overlapping;
  EXPECT_NE(overlapping.find("the parts of 'w' at [0, 0] and [1, 3] overlap"), std::string::npos) << overlapping;
  const auto twice = error({box({0, 0}, {2, 4}), box({0, 0}, {2, 4})});
  EXPECT_NE(twice.find("a part of 'w' at [0, 0] lies in two places"), std::string::npos) << twice;
}

TEST(Dcp, RefusesSoManyPartsThatNobodyWouldWaitForTheirComparison) {
  std::vector<DcpChunk> columns;
  for (std::int64_t i = 0; i < 20'000; ++i) columns.push_back({{0, i}, {4, 1}, "__0_0.distcp", 0, 16});
  const auto metadata =
      write_dcp_metadata({.tensors = {{"w", {"w"}, at::kFloat, {4, 20'000}, std::move(columns)}}, .objects = {}});
  EXPECT_NE(dcp_error([&] { parse_dcp_metadata(metadata, "m"); }).find("'w' has too many parts"), std::string::npos);
}

TEST(Dcp, RefusesMetadataThatWouldRunCode) {
  const std::string evil =
      "\x80\x02"
      "cposix\nsystem\n(X\x02\x00\x00\x00lstR.";
  EXPECT_NE(dcp_error([&] { parse_dcp_metadata(evil, "m"); }).find("\"posix.system\""), std::string::npos);
}

TEST(TorchFile, WhatIsWrittenIsReadBack) {
  const std::string folder = dcp_folder(), file = folder + "/model.bin";
  const auto a = at::arange(12, at::kFloat).view({3, 4}), b = at::arange(5, at::kLong).to(at::kBFloat16);
  write_torch_file(file, {{"a", a}, {"empty", at::empty({0, 3})}, {"b", b}, {"scalar", at::arange(1).squeeze()}});
  const auto source = open_weights(file);
  EXPECT_TRUE(at::equal(read_tensor(*source, "a"), a));
  EXPECT_TRUE(at::equal(read_tensor(*source, "b"), b));
  EXPECT_EQ(source->find("empty")->shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(source->find("scalar")->shape, std::vector<std::int64_t>{});
  {
    TorchFileWriter torn(folder + "/torn.bin", state_dict_pickle({{"a", at::kFloat, {2}, ""}}), {8});
  }
  EXPECT_FALSE(fs::exists(folder + "/torn.bin"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::io
