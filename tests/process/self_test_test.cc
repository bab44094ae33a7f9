// tessera test: the self-test over ranks that a config file describes.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera {
namespace {

TEST(SelfTests, HoldForEveryKindOfConfigFile) {
  const test::TempFolder folder("self_test");
  const std::string file = folder.path() + "/config.yaml";
  struct Case {
    std::string yaml, says;
  };
  const Case cases[] = {
      {"distributed_type: FSDP\nnum_processes: 2\nmixed_precision: 'no'\nfsdp_config:\n  fsdp_version: 2\n"
       "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n",
       "training (FULL_SHARD, mixed precision no)"},
      {"distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: "
       "HYBRID_SHARD\n"
       "  fsdp_shard_group_size: 2\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 100\n",
       "training (HYBRID_SHARD, mixed precision bf16)"},
      {"distributed_type: MULTI_CPU\nnum_processes: 3\n", "training (replicated, mixed precision no)"}};
  for (const auto& [yaml, says] : cases) {
    write_file_atomically(file, yaml);
    const auto r = test::run({TESSERA_BINARY, "test", "--config_file", file});
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
    for (const std::string& line : {std::string("ok: collectives\n"), "ok: " + says, std::string("as one rank alone")})
      EXPECT_SAYS(r.out, line);
    EXPECT_TRUE(r.out.ends_with("Test is a success! You are ready for your distributed training!\n")) << r.out;
  }
}

TEST(SelfTests, WhatTheConfigFileGetsWrongIsSaid) {
  const auto r = test::run({TESSERA_BINARY, "test", "--config_file", "/nonexistent.yaml"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_SAYS(r.err, "/nonexistent.yaml' does not exist");
  EXPECT_EQ(r.out.find("success"), std::string::npos);
}

}  // namespace
}  // namespace tessera
