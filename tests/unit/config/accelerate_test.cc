#include "config/accelerate.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/accelerate_convert.h"
#include "config/accelerate_input.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

const std::string kData = std::string(TESSERA_TEST_DATA) + "/config/";

LoadedAccelerate load_text(const std::string& yaml) {
  LoadedAccelerate out;
  AccelerateInput input;
  read_accelerate_document(parse_yaml(yaml, "c.yaml"), "c.yaml", input, out.warnings);
  out.config = resolve(input, "c.yaml", true, out.warnings);
  return out;
}

std::string error_of(const std::string& yaml) {
  try {
    load_text(yaml);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

bool mentions(const std::vector<std::string>& warnings, const std::string& text) {
  for (const std::string& w : warnings) {
    if (w.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(AccelerateFile, AFileThatIsNotUtf8IsRefusedWithTheLine) {
  EXPECT_EQ(error_of("num_processes: 2\nmain_process_ip: caf\xe9\n"),
            "c.yaml:2: expected UTF-8, found a byte that is none; save the file as UTF-8");
}

TEST(AccelerateConvert, NamesOfAnyCaseAndNumbersInQuotesMeanWhatLaunchReads) {
  const auto converted = [](const std::string& fsdp) {
    std::vector<std::string> notes;
    return to_fsdp2(parse_yaml("distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {" + fsdp + "}\n", "c.yaml"),
                    "c.yaml", notes)
        .at("fsdp_config");
  };
  for (const char* on : {"FULL_SHARD", "full_shard", "Hybrid_Shard", "1", "'1'", "4"})
    EXPECT_EQ(converted(std::string("fsdp_sharding_strategy: ") + on).at("fsdp_reshard_after_forward"), true) << on;
  for (const char* off : {"SHARD_GRAD_OP", "shard_grad_op", "no_shard", "2", "'5'", "hybrid_shard_zero2"})
    EXPECT_EQ(converted(std::string("fsdp_sharding_strategy: ") + off).at("fsdp_reshard_after_forward"), false) << off;
  EXPECT_EQ(converted("fsdp_reshard_after_forward: 'True'").at("fsdp_reshard_after_forward"), true);
  EXPECT_EQ(converted("fsdp_version: '1', fsdp_use_orig_params: true").count("fsdp_use_orig_params"), 0U);
  EXPECT_EQ(converted("fsdp_version: '2', fsdp_use_orig_params: true").count("fsdp_use_orig_params"), 1U);
  const auto updated =
      updated_document(parse_yaml("distributed_type: FSDP\nnum_processes: 2\nfp16: 'yes'\n", "c.yaml"), "c.yaml");
  EXPECT_EQ(updated.at("mixed_precision"), "fp16");
}

TEST(AccelerateFile, OffloadedActivationsAreKnownAndWithoutEffect) {
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2, ";
  const auto on = load_text(fsdp + "fsdp_activation_checkpointing_offload: true}\n").warnings;
  ASSERT_EQ(on.size(), 1U);
  EXPECT_EQ(on[0], "c.yaml:3: fsdp_activation_checkpointing_offload has no effect here");
  EXPECT_TRUE(load_text(fsdp + "activation_checkpointing_offload: false}\n").warnings.empty());
}

TEST(AccelerateFile, PrefetchesUnlessItIsToldNotToOrADiskHoldsTheParameters) {
  const std::string fsdp = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD";
  const auto by_default = load_text(fsdp + "}\n").config.fsdp;
  EXPECT_EQ(by_default.backward_prefetch, BackwardPrefetch::kPre);
  EXPECT_TRUE(by_default.forward_prefetch);
  const auto told =
      load_text(fsdp + ", fsdp_backward_prefetch: NO_PREFETCH, fsdp_forward_prefetch: false}\n").config.fsdp;
  EXPECT_EQ(told.backward_prefetch, BackwardPrefetch::kNone);
  EXPECT_FALSE(told.forward_prefetch);
  const auto on_disk = load_text(fsdp + ", fsdp_offload_params: true, fsdp_offload_folder: /tmp}\n").config.fsdp;
  EXPECT_EQ(on_disk.backward_prefetch, BackwardPrefetch::kNone);
  EXPECT_FALSE(on_disk.forward_prefetch);
}

TEST(AccelerateFile, ReadsTheGuidesExampleAsPrinted) {
  const LoadedAccelerate loaded = load_accelerate(kData + "lora_seq2seq.yaml");
  const AccelerateConfig& c = loaded.config;
  EXPECT_TRUE(c.use_fsdp);
  EXPECT_EQ(c.num_processes, 2);
  EXPECT_FALSE(c.use_cpu);
  EXPECT_EQ(c.mixed_precision, MixedPrecision::kNo);
  EXPECT_EQ(c.fsdp.sharding_strategy, ShardingStrategy::kFullShard);
  EXPECT_EQ(c.fsdp.auto_wrap_policy, WrapPolicy::kTransformerBased);
  EXPECT_EQ(c.fsdp.transformer_layer_cls_to_wrap, std::vector<std::string>{"T5Block"});
  EXPECT_EQ(c.fsdp.backward_prefetch, BackwardPrefetch::kPre);
  EXPECT_EQ(c.fsdp.state_dict_type, StateDictType::kFull);
  EXPECT_TRUE(c.fsdp.offload_params);
  EXPECT_TRUE(loaded.warnings.empty()) << loaded.warnings.front();
}

TEST(AccelerateFile, UnderstandsUnindentedFsdpLinesWithOneWarning) {
  const LoadedAccelerate lora = load_accelerate(kData + "sft_lora_unindented.yaml");
  EXPECT_EQ(lora.config.num_processes, 8);
  EXPECT_EQ(lora.config.mixed_precision, MixedPrecision::kBf16);
  EXPECT_EQ(lora.config.fsdp.auto_wrap_policy, WrapPolicy::kTransformerBased);
  EXPECT_EQ(lora.config.fsdp.state_dict_type, StateDictType::kSharded);
  EXPECT_FALSE(lora.config.fsdp.use_orig_params);
  ASSERT_EQ(lora.warnings.size(), 1u);
  EXPECT_NE(lora.warnings[0].find("sft_lora_unindented.yaml:6: "), std::string::npos) << lora.warnings[0];
  EXPECT_TRUE(load_accelerate(kData + "sft_qlora_unindented.yaml").config.fsdp.offload_params);
}

TEST(AccelerateFile, TakesNumbersKeysWithoutPrefixAndJson) {
  const AccelerateConfig c =
      load_text(
          "num_processes: 3\nfsdp_config:\n  sharding_strategy: 2\n  auto_wrap_policy: "
          "size_based_wrap\n  min_num_params: 1000\n  backward_prefetch: 2\n  state_dict_type: 3\n")
          .config;
  EXPECT_EQ(c.fsdp.sharding_strategy, ShardingStrategy::kShardGradOp);
  EXPECT_EQ(c.fsdp.auto_wrap_policy, WrapPolicy::kSizeBased);
  EXPECT_EQ(c.fsdp.min_num_params, 1000);
  EXPECT_EQ(c.fsdp.backward_prefetch, BackwardPrefetch::kPost);
  EXPECT_EQ(c.fsdp.state_dict_type, StateDictType::kSharded);

  const std::string path = testing::TempDir() + "accelerate.json";
  std::ofstream(path) << R"({"num_processes": 2, "mixed_precision": "bf16", "fsdp_config": {"fsdp_version": 2}})";
  const AccelerateConfig j = load_accelerate(path).config;
  EXPECT_EQ(j.mixed_precision, MixedPrecision::kBf16);
  EXPECT_EQ(j.fsdp.state_dict_type, StateDictType::kSharded);
}

TEST(AccelerateFile, HonoursReshardAfterForwardWhereItIsAllThereIs) {
  const auto strategy = [](const std::string& lines) {
    return load_text("num_processes: 1\nfsdp_config:\n" + lines).config.fsdp.sharding_strategy;
  };
  EXPECT_EQ(strategy("  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"), ShardingStrategy::kShardGradOp);
  EXPECT_EQ(strategy("  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n"), ShardingStrategy::kShardGradOp);
  EXPECT_EQ(strategy("  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"), ShardingStrategy::kFullShard);
  EXPECT_EQ(strategy("  fsdp_reshard_after_forward: true\n  fsdp_sharding_strategy: NO_SHARD\n"),
            ShardingStrategy::kNoShard);
}

TEST(AccelerateFile, UnknownTopLevelKeysAreErrorsWithLineAndNearest) {
  EXPECT_EQ(error_of("num_processes: 2\nnum_machins: 1\n"),
            "c.yaml:2: unknown key 'num_machins' (did you mean 'num_machines'?)");
  EXPECT_EQ(error_of("fsdp_confg:\n  fsdp_version: 1\n"),
            "c.yaml:1: unknown key 'fsdp_confg' (did you mean 'fsdp_config'?)");
  EXPECT_EQ(
      error_of("model_name_or_path: m\n"),
      "c.yaml:1: unknown key 'model_name_or_path'; a file with flags of a task stands behind it: tessera launch ... "
      "TASK FILE");
}

TEST(AccelerateFile, UnknownFsdpKeysAreWarnings) {
  const auto loaded = load_text("num_processes: 1\nfsdp_config:\n  fsdp_offload_parms: true\n");
  EXPECT_TRUE(mentions(loaded.warnings,
                       "c.yaml:3: unknown key 'fsdp_offload_parms' in fsdp_config is ignored (did you mean "
                       "'fsdp_offload_params'?)"));
}

TEST(AccelerateFile, BadValuesNameLineKeyAndChoices) {
  EXPECT_EQ(error_of("num_processes: two\n"), "c.yaml:1: num_processes expects an integer, found 'two'");
  EXPECT_EQ(error_of("num_processes: 1\nfsdp_config:\n  fsdp_sharding_strategy: FULL\n"),
            "c.yaml:3: fsdp_sharding_strategy expects one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, "
            "HYBRID_SHARD_ZERO2, found 'FULL'");
  EXPECT_NE(error_of("num_processes: 1\nnum_processes: 2\n").find("c.yaml:2: the key 'num_processes' is given twice"),
            std::string::npos);
  EXPECT_NE(error_of("a: [1\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(error_of("just words\n").find("expected lines of the form 'key: value'"), std::string::npos);
}

TEST(AccelerateFile, RefusesContradictionsAndWhatItCannotDo) {
  const std::string one = "num_processes: 1\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"distributed_type: FSDP\n", "num_processes must be at least 1, but it is not set"},
      {"num_processes: 0\n", "found 0"},
      {one + "num_machines: 2\n", "1 cannot be shared equally by 2 machines"},
      {one + "num_machines: 0\n", "num_machines must be at least 1, found 0"},
      {"num_processes: 4\nnum_machines: 2\n", "main_process_ip is not set"},
      {"num_processes: 4\nnum_machines: 2\nmachine_rank: 2\nmain_process_ip: 10.0.0.1\n", "from 0 to 1"},
      {one + "machine_rank: 1\n", "machine_rank is 1"},
      {one + "distributed_type: DEEPSPEED\n", "distributed_type 'DEEPSPEED' is not supported"},
      {one + "mixed_precision: fp8\n", "fp8 is not supported"},
      {one + "compute_environment: AZURE\n", "use LOCAL_MACHINE"},
      {one + "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_shard_group_size: 2}\n", "does not divide"},
      {one + "fsdp_config: {fsdp_shard_group_size: 1}\n", "fsdp_shard_group_size 1 contradicts"},
      {one + "fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: T5Block}\n",
       "contradicts fsdp_auto_wrap_policy SIZE_BASED_WRAP"},
      {one + "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_reshard_after_forward: NO_SHARD}\n",
       "contradict each other"},
      {one + "fsdp_config: {fsdp_backward_prefetch: 1, fsdp_backward_prefetch_policy: 2}\n",
       "sets what a line above sets already"},
      {one + "fsdp_config: {fsdp_version: 3}\n", "expects 1 or 2"},
  };
  for (const auto& [yaml, expected] : cases)
    EXPECT_NE(error_of(yaml).find(expected), std::string::npos) << error_of(yaml);
}

TEST(AccelerateFile, ParallelismConfigSaysHybridSharding) {
  const auto fsdp_of = [](const std::string& sizes, const std::string& reshard) {
    return load_text("num_processes: 4\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: " + reshard +
                     "}\nparallelism_config: {" + sizes + "}\n")
        .config.fsdp;
  };
  const std::string hybrid = "parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2";
  EXPECT_EQ(fsdp_of(hybrid, "true").sharding_strategy, ShardingStrategy::kHybridShard);
  EXPECT_EQ(fsdp_of(hybrid, "false").sharding_strategy, ShardingStrategy::kHybridShardZero2);
  EXPECT_EQ(fsdp_of(hybrid, "true").shard_group_size, 2);
  EXPECT_EQ(fsdp_of("dp_replicate_size: 4", "true").sharding_strategy, ShardingStrategy::kNoShard);
  EXPECT_EQ(fsdp_of("parallelism_config_dp_shard_size: 4, parallelism_config_tp_size: 1", "true").sharding_strategy,
            ShardingStrategy::kFullShard);
  const std::string four = "num_processes: 4\nparallelism_config: ";
  EXPECT_NE(error_of(four + "{dp_replicate_size: 2, dp_shard_size: 3}\n").find("must be num_processes 4"),
            std::string::npos);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{parallelism_config_tp_size: 2}", "is not supported"},
      {"{dp_replicate_size: 0}", "must be at least 1, found 0 and 1"},
      {"{dp_replicate_size: 65536, dp_shard_size: 65536}", "must be num_processes 4"},
      {"{dp_shard_size: many}", "expects a whole number, found 'many'"},
      {"{dp_shard_sise: 4}", "unknown key 'dp_shard_sise' in parallelism_config (did you mean 'dp_shard_size'?)"},
      {"3", "parallelism_config expects indented lines"},
  };
  for (const auto& [yaml, expected] : wrong)
    EXPECT_NE(error_of(four + yaml + "\n").find(expected), std::string::npos) << error_of(four + yaml + "\n");
}

TEST(AccelerateFile, SectionsOfOtherEnginesAreRefusedWhereTheyAreUsedAndElseNamed) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"deepspeed_config: {zero_stage: 3}\n", "distributed_type: DEEPSPEED\n", "FULL_SHARD for zero_stage 3"},
      {"megatron_lm_config: {tp_degree: 2}\n", "distributed_type: MEGATRON_LM\n", "set distributed_type to FSDP"},
      {"fp8_config: {backend: TE}\n", "mixed_precision: fp8\n", "set mixed_precision to bf16"},
      {"mpirun_config: {mpirun_ccl: '1', mpirun_hostfile: hosts}\n", "distributed_type: MULTI_CPU\n",
       "let mpirun start 'tessera TASK'"}};
  for (const auto& [section, use, remedy] : cases) {
    const std::string key = section.substr(0, section.find(':'));
    const auto unused = load_text("num_processes: 1\ndistributed_type: FSDP\n" + section);
    EXPECT_TRUE(mentions(unused.warnings, "c.yaml:3: " + key + " has no effect without ")) << key;
    const std::string error = error_of("num_processes: 1\n" + section + use);
    EXPECT_EQ(error.find("c.yaml:2: " + key + " (with "), 0u) << error;
    EXPECT_NE(error.find(remedy), std::string::npos) << error;
    EXPECT_TRUE(load_text("num_processes: 1\n" + key + ": {}\n").warnings.empty()) << key;
  }
}

TEST(AccelerateFile, OtherDistributedTypesAreNamedAsWhatTheyAre) {
  for (const char* device : {"TPU", "XLA", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU"})
    EXPECT_NE(error_of(std::string("num_processes: 1\ndistributed_type: ") + device + "\n")
                  .find("is not supported (there is no code for such devices); use FSDP"),
              std::string::npos)
        << device;
  EXPECT_NE(error_of("num_processes: 1\ndistributed_type: DEEPSPEED\n").find("(another engine)"), std::string::npos);
  EXPECT_NE(error_of("num_processes: 1\ndistributed_type: FSPD\n").find("did you mean 'FSDP'"), std::string::npos);
}

TEST(AccelerateFile, ASageMakerFileIsNamedAsThat) {
  const std::string error =
      error_of("base_job_name: job\ncompute_environment: AMAZON_SAGEMAKER\nec2_instance_type: ml.p3\n");
  EXPECT_EQ(error.find("c.yaml:2: this file (compute_environment: AMAZON_SAGEMAKER) starts jobs on Amazon SageMaker"),
            0u)
      << error;
}

TEST(AccelerateFile, LegacyAndForeignKeysAreTakenAsTheyWereMeant) {
  const auto loaded =
      load_text("num_processes: 1\nfp16: true\ndynamo_backend: INDUCTOR\ntpu_name: pod\ndowncast_bf16: 'no'\n");
  EXPECT_EQ(loaded.config.mixed_precision, MixedPrecision::kFp16);
  EXPECT_TRUE(mentions(loaded.warnings, "dynamo_backend INDUCTOR has no effect"));
  EXPECT_TRUE(mentions(loaded.warnings, "c.yaml:4: tpu_name has no effect"));
  EXPECT_EQ(loaded.warnings.size(), 2u);
}

TEST(AccelerateFile, ALeadingZeroMeansOctalDigits) {
  EXPECT_EQ(load_text("num_processes: 010\n").config.num_processes, 8);
  EXPECT_EQ(load_text("num_processes: 010\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {dp_shard_size: 010}\n")
                .config.num_processes,
            8);
}

TEST(AccelerateFile, AliasesThatGrowWithoutEndAreRefused) {
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 8; ++i) {
    const std::string ref = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + ref;
    for (int k = 1; k < 10; ++k) bomb += ", " + ref;
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more than 100000 values"), std::string::npos) << error_of(bomb);
}

TEST(AccelerateFlags, ReplaceWhatTheyContradictInTheFile) {
  AccelerateInput input;
  std::vector<std::string> warnings;
  read_accelerate_file(kData + "lora_seq2seq.yaml", input, warnings);
  OptionTable flags("tessera launch", "");
  add_accelerate_options(flags, input);
  AccelerateInput scratch;
  OptionTable first("tessera launch", "");
  add_accelerate_options(first, scratch);
  const std::vector<std::string> args = {"--num_processes", "3", "--fsdp-auto-wrap-policy", "SIZE_BASED_WRAP"};
  ASSERT_EQ(first.parse(args), ParseResult::kRun);
  drop_overridden(first, input);
  ASSERT_EQ(flags.parse(args), ParseResult::kRun);
  const AccelerateConfig c = resolve(input, "x", true, warnings);
  EXPECT_EQ(c.num_processes, 3);
  EXPECT_EQ(c.fsdp.auto_wrap_policy, WrapPolicy::kSizeBased);
  EXPECT_TRUE(c.fsdp.transformer_layer_cls_to_wrap.empty());
  EXPECT_TRUE(c.fsdp.offload_params);
}

AccelerateConfig through_environment(const Environment& variables) {
  std::map<std::string, std::string> values(variables.begin(), variables.end());
  return from_environment([&](const char* name) {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : it->second.c_str();
  });
}

TEST(AccelerateEnvironment, CarriesTheConfigurationToTheRanks) {
  for (const char* fsdp :
       {"fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_state_dict_type: 3, fsdp_backward_prefetch: 1",
        "fsdp_version: 2, fsdp_reshard_after_forward: false", "fsdp_version: 2, fsdp_sharding_strategy: 3",
        "fsdp_sharding_strategy: HYBRID_SHARD_ZERO2, fsdp_shard_group_size: 2",
        "fsdp_version: 2, fsdp_sharding_strategy: HYBRID_SHARD, fsdp_reshard_after_forward: true",
        "fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 7, fsdp_offload_params: true, "
        "fsdp_offload_folder: /a/b",
        "fsdp_auto_wrap_policy: 1, fsdp_transformer_layer_cls_to_wrap: 'BertLayer,BertEmbeddings', "
        "fsdp_ignored_modules: 'a.*: [b''c]', fsdp_activation_checkpointing: true"}) {
    const AccelerateConfig config =
        load_text(std::string("num_processes: 2\nmixed_precision: bf16\nuse_cpu: true\nfsdp_config: {") + fsdp + "}\n")
            .config;
    Environment variables = to_environment(config);
    variables.emplace_back("WORLD_SIZE", "2");
    EXPECT_EQ(through_environment(variables), config) << fsdp;
    const std::string path = testing::TempDir() + "written.yaml";
    std::ofstream(path) << to_yaml(config);
    EXPECT_EQ(load_accelerate(path).config, config) << to_yaml(config);
  }
}

TEST(AccelerateYaml, KeepsWhatEachFlagSays) {
  // Flags that say nothing of a configuration, or of which the file has another form.
  const std::set<std::string> without = {"--same_network",
                                         "--rdzv_backend",
                                         "--main_training_function",
                                         "--compute_environment",
                                         "--dynamo_backend",
                                         "--fsdp_use_orig_params",
                                         "--use_fsdp"};
  const std::map<std::string, std::vector<std::string>> needs = {
      {"--fsdp_min_num_params", {"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"}},
      {"--num_machines", {"--num_processes", "4", "--main_process_ip", "10.0.0.1"}},
      {"--machine_rank", {"--num_machines", "2", "--num_processes", "4", "--main_process_ip", "10.0.0.1"}},
      {"--fsdp_sync_module_states", {"--fsdp_cpu_ram_efficient_loading", "false"}},
      {"--fsdp_shard_group_size", {"--fsdp_sharding_strategy", "HYBRID_SHARD", "--num_processes", "4"}}};
  AccelerateInput unset;
  OptionTable all("", "");
  add_accelerate_options(all, unset);
  const auto configure = [](const std::vector<std::string>& words) {
    AccelerateInput input;
    OptionTable table("", "");
    add_accelerate_options(table, input);
    EXPECT_EQ(table.parse(words), ParseResult::kRun);
    std::vector<std::string> warnings;
    return resolve(input, "test", /*has_file=*/false, warnings);
  };
  for (const std::string& flag : all.names()) {
    const auto needed = needs.find(flag);
    const auto with = needed == needs.end() ? std::vector<std::string>{} : needed->second;
    const auto base = configure(with);
    bool seen = without.contains(flag);
    for (const char* value :
         {"true", "false", "1", "2", "0,1", "10.0.0.7", "bf16", "NO", "SHARD_GRAD_OP", "SIZE_BASED_WRAP",
          "TRANSFORMER_BASED_WRAP", "BACKWARD_POST", "SHARDED_STATE_DICT", "A,B"}) {
      auto words = with;
      words.insert(words.end(), {flag, value});
      AccelerateConfig config;
      try {
        config = configure(words);
      } catch (const ConfigError&) {
        continue;  // no value of this flag
      }
      if (config == base) continue;
      seen = true;
      const std::string path = testing::TempDir() + "flag.yaml";
      std::ofstream(path) << to_yaml(config);
      EXPECT_EQ(load_accelerate(path).config, config) << flag << " " << value << "\n" << to_yaml(config);
    }
    EXPECT_TRUE(seen) << flag << " changes nothing with these values: add one";
  }
}

TEST(AccelerateEnvironment, WithoutALaunchTheDefaultShardsByTheModelsLayers) {
  const AccelerateConfig c = through_environment({{"WORLD_SIZE", "3"}});
  EXPECT_TRUE(c.use_fsdp);
  EXPECT_EQ(c.fsdp.auto_wrap_policy, WrapPolicy::kTransformerBased);
  EXPECT_EQ(c.num_processes, 3);
}

TEST(AccelerateEnvironment, ReshardWinsOverTheStrategyThatAcceleratesLauncherAlwaysExports) {
  const AccelerateConfig c =
      through_environment({{"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}, {"FSDP_RESHARD_AFTER_FORWARD", "SHARD_GRAD_OP"}});
  EXPECT_EQ(c.fsdp.sharding_strategy, ShardingStrategy::kShardGradOp);
}

TEST(AccelerateEnvironment, NamesTheVariableAtFault) {
  try {
    through_environment({{"FSDP_STATE_DICT_TYPE", "SOME"}});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("environment variable FSDP_STATE_DICT_TYPE: "), std::string::npos);
  }
}

TEST(AccelerateEnvironment, WhatOtherEnginesWereAskedForIsRefused) {
  for (const std::string name :
       {"ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
    EXPECT_NO_THROW(through_environment({{name, "false"}}));
    try {
      through_environment({{name, "true"}});
      ADD_FAILURE() << name;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("environment variable " + name + ": it is not supported"),
                std::string::npos);
    }
  }
}

TEST(AccelerateEnvironment, WhatChangesNothingHereIsSaid) {
  const auto warnings = [](const char* value) {
    return idle_variables([&](const char* name) {
      return std::string(name) == "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD" ? value : nullptr;
    });
  };
  for (const char* off : {static_cast<const char*>(nullptr), "", "false", "0"}) EXPECT_TRUE(warnings(off).empty());
  ASSERT_EQ(warnings("True").size(), 1U);
  EXPECT_TRUE(warnings("True")[0].starts_with(
      "environment variable FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=True has no effect: "));
  EXPECT_THROW(warnings("some"), ConfigError);
}

TEST(AccelerateFile, DefaultPathFollowsHuggingFacesVariables) {
  ::setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(default_accelerate_path(), "/h/accelerate/default_config.yaml");
  ::unsetenv("HF_HOME");
  ::setenv("XDG_CACHE_HOME", "/c", 1);
  EXPECT_EQ(default_accelerate_path(), "/c/huggingface/accelerate/default_config.yaml");
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace tessera::config
