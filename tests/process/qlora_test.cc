// 4-bit bases on real processes: packed while they are read or by `quantize`, trained over, generated from, merged.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/sft_job.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using test::Finished;
using test::kTestData;
using test::kTinyChat;
using test::Words;
using test::operator+;

const std::string kQuantGoldens = kTestData + "/goldens/C_quant/";

class Qlora : public test::SftJob {
 protected:
  Qlora() : SftJob("qlora") {}

  Finished train(int ranks, const std::string& model, const std::string& out, const Words& more = {}) const {
    return sft(ranks, model, out,
               Words{"--max_steps", "4", "--learning_rate", "1e-2", "--per_device_train_batch_size",
                     std::to_string(12 / ranks), "--max_length", "64"} +
                   test::kLora + more);
  }
};

const Words kFourBit = {"--use_4bit_quantization", "True", "--use_nested_quant", "True"};

TEST_F(Qlora, PackedWhileReadOrBeforeTheLossesAreTheSameOnAnyNumberOfRanks) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed", "--double_quant",
                       "--bnb_4bit_quant_storage", "bfloat16", "--dtype", "float32"})
                .exit_code,
            0);
  const auto one = train(1, "model", "one", kFourBit);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  ASSERT_EQ(train(2, "model", "two", kFourBit).exit_code, 0);
  ASSERT_EQ(train(2, "packed", "folder").exit_code, 0);
  ASSERT_EQ(train(2, "packed", "copies", {"--gather", "copy"}).exit_code, 0);
  ASSERT_EQ(train(1, "model", "dense").exit_code, 0);
  const auto expected = losses("one");
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_LT(expected.back(), expected.front());
  EXPECT_NE(losses("dense"), expected);
  EXPECT_EQ(losses("two"), losses("folder"));
  EXPECT_EQ(losses("two"), losses("copies"));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses("two")[i], expected[i], 1e-4 * expected[i]) << i;
}

TEST_F(Qlora, EveryShardingStrategyTrainsTheSameAdapter) {
  const auto train_under = [&](const std::string& strategy, const std::string& packing) {
    const Finished r = test::run(
        Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2", "--fsdp_sharding_strategy", strategy} +
        test::sft_words(folder_ + "/model", kTinyChat, folder_, strategy + packing) + test::kLora +
        Words{"--max_steps", "2", "--save_strategy", "no", "--learning_rate", "1e-2", "--max_length", "64", packing,
              "true"});
    EXPECT_EQ(r.exit_code, 0) << strategy << packing << r.err;
    return read_file(folder_ + "/" + strategy + packing + "/adapter_model.safetensors");
  };
  for (const char* packing : {"--use_4bit_quantization", "--use_8bit_quantization"}) {
    const auto full = train_under("FULL_SHARD", packing);
    for (const char* strategy : {"SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"})
      EXPECT_TRUE(train_under(strategy, packing) == full) << strategy << packing;
  }
}

TEST_F(Qlora, GoesOnFromACheckpointWithTheSameBits) {
  const Words saves = {"--save_strategy", "steps", "--save_steps", "2"};
  ASSERT_EQ(train(2, "model", "whole", kFourBit + saves).exit_code, 0);
  const auto r =
      train(2, "model", "on", kFourBit + saves + Words{"--resume_from_checkpoint", folder_ + "/whole/checkpoint-2"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto whole = losses("whole"), on = losses("on");
  ASSERT_EQ(on.size(), 2u);
  EXPECT_EQ(on[1], whole[3]);
  EXPECT_TRUE(read_file(folder_ + "/whole/adapter_model.safetensors") ==
              read_file(folder_ + "/on/adapter_model.safetensors"));
}

TEST_F(Qlora, AnAdapterOverAPackedFolderIsMergedIntoADenseOne) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed"}).exit_code, 0);
  ASSERT_EQ(train(2, "packed", "adapter").exit_code, 0);
  for (const int ranks : {1, 2}) {
    const auto r = launch(ranks, {"merge", "--model", folder_ + "/packed", "--adapter", folder_ + "/adapter",
                                  "--output_dir", folder_ + "/merged" + std::to_string(ranks)});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  EXPECT_TRUE(read_file(folder_ + "/merged1/model.safetensors") == read_file(folder_ + "/merged2/model.safetensors"));
  EXPECT_FALSE(json::parse(read_file(folder_ + "/merged1/config.json")).contains("quantization_config"));
  ASSERT_EQ(test::run({TESSERA_BINARY, "export", folder_ + "/packed", folder_ + "/unpacked"}).exit_code, 0);
  const auto dense = io::open_safetensors(folder_ + "/unpacked/model.safetensors");
  EXPECT_EQ(dense->tensors().size(), io::open_safetensors(folder_ + "/model/model.safetensors")->tensors().size());
  const auto answer = [&](const Words& of) {
    const auto r = test::run(Words{TESSERA_BINARY, "generate", "--prompt", "Hello", "--max_new_tokens", "8"} + of);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };
  EXPECT_EQ(answer({"--model", folder_ + "/packed", "--adapter", folder_ + "/adapter"}),
            answer({"--model", folder_ + "/merged1"}));
}

TEST_F(Qlora, FoldersAreTheBytesThatTransformersAndBitsandbytesWrite) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {"model_nf4", {"--type", "nf4", "--dtype", "float32"}},
      {"model_fp4", {"--type", "fp4", "--dtype", "float32"}},
      {"model_nf4_double_bf16", {"--double_quant", "--dtype", "bfloat16"}},
      {"model_nf4_double_storage_bf16",
       {"--double_quant", "--dtype", "bfloat16", "--bnb_4bit_quant_storage", "bfloat16"}}};
  for (const auto& [name, flags] : cases) {
    SCOPED_TRACE(name);
    const auto r =
        test::run(Words{TESSERA_BINARY, "quantize", kQuantGoldens + "base_llama", folder_ + "/" + name} + flags);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto ours = io::open_safetensors(folder_ + "/" + name + "/model.safetensors"),
               theirs = io::open_safetensors(kQuantGoldens + name + "/model.safetensors");
    ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
    for (const auto& info : theirs->tensors()) {
      const auto* found = ours->find(info.name);
      ASSERT_NE(found, nullptr) << info.name;
      EXPECT_EQ(found->dtype, info.dtype) << info.name;
      EXPECT_EQ(found->shape, info.shape) << info.name;
      const auto a = io::read_tensor(*ours, info.name), b = io::read_tensor(*theirs, info.name);
      EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << info.name;
    }
    EXPECT_EQ(json::parse(read_file(folder_ + "/" + name + "/config.json"))["quantization_config"],
              json::parse(read_file(kQuantGoldens + name + "/config.json"))["quantization_config"]);
  }
}

TEST_F(Qlora, EightBitFoldersAreTheBytesThatTransformersAndBitsandbytesWrite) {
  const auto r = test::run({TESSERA_BINARY, "quantize", kQuantGoldens + "base_llama", folder_ + "/int8", "--type",
                            "int8", "--dtype", "float16"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto ours = io::open_safetensors(folder_ + "/int8/model.safetensors"),
             theirs = io::open_safetensors(kQuantGoldens + "model_int8/model.safetensors");
  ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
  for (const auto& info : theirs->tensors()) {
    const auto a = io::read_tensor(*ours, info.name), b = io::read_tensor(*theirs, info.name);
    EXPECT_EQ(a.scalar_type(), b.scalar_type()) << info.name;
    EXPECT_EQ(a.sizes(), b.sizes()) << info.name;
    EXPECT_TRUE(at::equal(a, b)) << info.name;
  }
  EXPECT_EQ(json::parse(read_file(folder_ + "/int8/config.json"))["quantization_config"],
            json::parse(read_file(kQuantGoldens + "model_int8/config.json"))["quantization_config"]);
}

const Words kEightBit = {"--use_8bit_quantization", "True"};

TEST_F(Qlora, AdaptersOverEightBitsTrainAlikeOnAnyNumberOfRanks) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed", "--type", "int8", "--dtype",
                       "float32"})
                .exit_code,
            0);
  const Words dora = {"--use_dora", "True", "--use_rslora", "True"};
  const auto one = train(1, "model", "one", kEightBit + dora);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto expected = losses("one");
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_LT(expected.back(), expected.front());
  for (const int ranks : {2, 3}) {
    const auto out = "ranks" + std::to_string(ranks);
    const auto r = train(ranks, "packed", out, dora);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses(out)[i], expected[i], 1e-4 * expected[i]) << ranks;
  }
  const auto merged = launch(
      2, {"merge", "--model", folder_ + "/packed", "--adapter", folder_ + "/one", "--output_dir", folder_ + "/merged"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_FALSE(json::parse(read_file(folder_ + "/merged/config.json")).contains("quantization_config"));
  const Words saves = {"--save_strategy", "steps", "--save_steps", "2"};
  ASSERT_EQ(train(2, "packed", "whole", saves).exit_code, 0);
  const auto on = train(2, "packed", "on", saves + Words{"--resume_from_checkpoint", folder_ + "/whole/checkpoint-2"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  EXPECT_TRUE(read_file(folder_ + "/whole/adapter_model.safetensors") ==
              read_file(folder_ + "/on/adapter_model.safetensors"));
}

TEST_F(Qlora, AConfigThatAsksForPackingPacksDenseWeights) {
  fs::copy(folder_ + "/model", folder_ + "/asks", fs::copy_options::recursive);
  auto config = json::parse(read_file(folder_ + "/asks/config.json"));
  config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                   {"load_in_4bit", true},
                                   {"bnb_4bit_quant_type", "nf4"},
                                   {"bnb_4bit_use_double_quant", true}};
  write_file_atomically(folder_ + "/asks/config.json", config.dump());
  ASSERT_EQ(train(1, "asks", "asked").exit_code, 0);
  ASSERT_EQ(train(1, "model", "flags", kFourBit).exit_code, 0);
  EXPECT_EQ(losses("asked"), losses("flags"));
}

TEST_F(Qlora, AMergedModelIsPackedAgain) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed"}).exit_code, 0);
  ASSERT_EQ(train(2, "packed", "adapter").exit_code, 0);
  const auto merge = [&](int ranks, const std::string& out, const Words& flags) {
    const auto r = launch(ranks, Words{"merge", "--model", folder_ + "/packed", "--adapter", folder_ + "/adapter",
                                       "--output_dir", folder_ + "/" + out, "--dtype", "float32"} +
                                     flags);
    ASSERT_EQ(r.exit_code, 0) << r.err;
  };
  merge(1, "dense", {});
  for (const std::string type : {"nf4", "int8"}) {
    const Words flags = type == "nf4" ? Words{"--type", type, "--double_quant"} : Words{"--type", type};
    for (const int ranks : {1, 2}) merge(ranks, type + std::to_string(ranks), flags);
    ASSERT_EQ(test::run(Words{TESSERA_BINARY, "quantize", folder_ + "/dense", folder_ + "/after_" + type, "--dtype",
                              "float32"} +
                        flags)
                  .exit_code,
              0);
    const auto merged = io::open_safetensors(folder_ + "/" + type + "1/model.safetensors"),
               after = io::open_safetensors(folder_ + "/after_" + type + "/model.safetensors");
    EXPECT_TRUE(read_file(folder_ + "/" + type + "1/model.safetensors") ==
                read_file(folder_ + "/" + type + "2/model.safetensors"));
    for (const auto& info : after->tensors()) {
      if (info.name.find("quant_state") != std::string::npos) continue;  // has room for any offset
      EXPECT_TRUE(at::equal(io::read_tensor(*merged, info.name), io::read_tensor(*after, info.name))) << info.name;
    }
    EXPECT_EQ(json::parse(read_file(folder_ + "/" + type + "1/config.json"))["quantization_config"],
              json::parse(read_file(folder_ + "/after_" + type + "/config.json"))["quantization_config"]);
    EXPECT_EQ(test::run({TESSERA_BINARY, "generate", "--prompt", "Hello", "--max_new_tokens", "4", "--model",
                         folder_ + "/" + type + "2"})
                  .exit_code,
              0);
  }
}

TEST_F(Qlora, WeightsOfConv1dArePackedTransposedAndReadEitherWay) {
  const std::string gpt2 = kTestData + "/goldens/A_models/gpt2";
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", gpt2, folder_ + "/packed", "--dtype", "float32"}).exit_code, 0);
  ASSERT_EQ(test::run({TESSERA_BINARY, "export", folder_ + "/packed", folder_ + "/dense"}).exit_code, 0);
  const auto reference = io::open_safetensors(gpt2 + "/model.safetensors"),
             dense = io::open_safetensors(folder_ + "/dense/model.safetensors");
  for (const std::string name : {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight"}) {
    const auto was = io::read_tensor(*reference, name), is = io::read_tensor(*dense, name);
    ASSERT_EQ(was.sizes(), is.sizes());
    const double error = (was - is).abs().mean().item<double>(), size = was.abs().mean().item<double>();
    EXPECT_LT(error, 0.2 * size) << name;  // of another layout it would be 1.4 times the size
    EXPECT_GT(error, 0);
  }
  // Packed and unpacked, the folder gives the same numbers.
  for (const char* of : {"packed", "dense"}) fs::remove(folder_ + "/" + of + "/expect.json");  // lists other files, too
  fs::copy_file(gpt2 + "/io.safetensors", folder_ + "/packed/io.safetensors", fs::copy_options::overwrite_existing);
  fs::copy_file(gpt2 + "/io.safetensors", folder_ + "/dense/io.safetensors", fs::copy_options::overwrite_existing);
  const auto worst = [&](const std::string& of, const Words& flags) {
    const auto text = test::run(Words{TESSERA_BINARY, "verify", folder_ + "/" + of} + flags).out;
    const auto at = text.find("logits: differs by ");
    return at == std::string::npos ? text : text.substr(at, 27);
  };
  const auto expected = worst("dense", {});
  EXPECT_TRUE(contains(expected, "differs by")) << expected;
  EXPECT_EQ(worst("packed", {}), expected);
  EXPECT_EQ(worst("packed", {"--sharded"}), expected);
}

TEST_F(Qlora, BadFoldersAndFlagsAreNamed) {
  const auto expect = [&](const Finished& r, const std::string& part) {
    EXPECT_NE(r.exit_code, 0) << part;
    EXPECT_TRUE(contains(r.err, part)) << part << "\n" << r.err;
  };
  ASSERT_EQ(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed"}).exit_code, 0);
  expect(train(1, "packed", "bad", {"--use_peft_lora", "False"}), "do not train");
  expect(test::run({TESSERA_BINARY, "quantize", folder_ + "/packed", folder_ + "/twice"}), "packed already");
  expect(test::run({TESSERA_BINARY, "quantize", folder_ + "/model", folder_ + "/packed"}), "--overwrite_output_dir");
  expect(train(1, "packed", "bad", {"--use_8bit_quantization", "True"}), "packed already, in 4 bits");
  auto config = json::parse(read_file(folder_ + "/model/config.json"));
  const auto with = [&](const json& quantization) {
    config["quantization_config"] = quantization;
    write_file_atomically(folder_ + "/model/config.json", config.dump());
    return train(1, "model", "bad");
  };
  expect(with({{"quant_method", "gptq"}, {"bits", 4}}), "but they are dense");
  expect(with({{"quant_method", "gptq"}, {"bits", 3}}), "codes of 3 bits");
  expect(with({{"quant_method", "awq"}, {"version", "gemv"}}), "'gemv'");
  expect(with({{"quant_method", "hqq"}}), "'hqq'");
  expect(with({{"load_in_4bit", true}, {"load_in_8bit", true}}), "both true");
}

}  // namespace
}  // namespace tessera
