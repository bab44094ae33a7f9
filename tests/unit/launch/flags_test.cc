#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "launch/launch.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Words = std::vector<std::string>;

class LaunchFlags : public testing::Test {
 protected:
  LaunchFlags() : folder_(testing::TempDir() + "launch_flags_" + std::to_string(getpid())) {
    ::setenv("HF_HOME", folder_.c_str(), 1);  // no default_config.yaml there
    std::filesystem::create_directories(folder_);
    write_file_atomically(folder_ + "/own.yaml", "num_processes: 3\ndistributed_type: FSDP\n");
  }
  ~LaunchFlags() override { std::filesystem::remove_all(folder_); }

  static LaunchPlan plan(Words flags) {
    flags.insert(flags.end(), {"sft", "--seed", "1"});
    return *plan_launch(flags, {{"sft"}, "/bin/true"});
  }

  /// What ranks are started with, or why not.
  static std::string effect(const Words& flags) {
    try {
      const LaunchPlan p = plan(flags);
      std::string text = config::to_yaml(p.accelerate);
      for (int rank = 0; rank < ranks_here(p.accelerate); ++rank) {
        for (const auto& [name, value] : rank_environment(p, rank, 29500, 0)) text += name + "=" + value + "\n";
      }
      const LaunchOptions& o = p.options;
      return text + fmt::format("{} {} {} {} {}", o.tee, o.log_dir, o.max_restarts, o.grace_period.value_or(-1),
                                fmt::join(p.warnings, "\n"));
    } catch (const ConfigError& e) {
      return e.what();
    }
  }
  static std::string told(const Words& flags) {
    try {
      return fmt::format("{}", fmt::join(plan(flags).notes, "\n"));
    } catch (const ConfigError& e) {
      return e.what();
    }
  }

  std::string folder_;
};

struct LaunchCase {
  std::string flag;
  Words words, with = {};
};

TEST_F(LaunchFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  const Words two = {"--num_machines", "2", "--num_processes", "2", "--main_process_ip", "10.0.0.1"};
  const std::vector<LaunchCase> cases = {
      {"--config_file", {folder_ + "/own.yaml"}},
      {"--accelerate_config", {"fsdp2"}},
      {"--num_processes", {"2"}},
      {"--num_machines", {"1"}, two},
      {"--machine_rank", {"1"}, two},
      {"--main_process_ip", {"10.0.0.2"}, two},
      {"--main_process_port", {"29501"}},
      {"--use_cpu", {}},
      {"--gpu_ids", {"0,1"}},
      {"--enable_cpu_affinity", {}},
      {"--debug", {}},
      {"--mixed_precision", {"bf16"}},
      {"--distributed_type", {"MULTI_CPU"}},
      {"--compute_environment", {"ELSEWHERE"}},
      {"--dynamo_backend", {"inductor"}},
      {"--use_fsdp", {"false"}},
      {"--fsdp_version", {"2"}},
      {"--fsdp_sharding_strategy", {"NO_SHARD"}},
      {"--fsdp_reshard_after_forward", {"false"}, {"--fsdp_version", "2"}},
      {"--fsdp_auto_wrap_policy", {"NO_WRAP"}},
      {"--fsdp_transformer_layer_cls_to_wrap", {"T5Block"}},
      {"--fsdp_min_num_params", {"5"}, {"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"}},
      {"--fsdp_backward_prefetch", {"NO_PREFETCH"}},
      {"--fsdp_forward_prefetch", {"false"}},
      {"--fsdp_state_dict_type", {"SHARDED_STATE_DICT"}},
      {"--fsdp_offload_params", {}},
      {"--fsdp_offload_folder", {folder_}},
      {"--fsdp_cpu_ram_efficient_loading", {"false"}},
      {"--fsdp_sync_module_states", {"false"}, {"--fsdp_cpu_ram_efficient_loading", "false"}},
      {"--fsdp_activation_checkpointing", {}},
      {"--fsdp_ignored_modules", {"lm_head"}},
      {"--fsdp_shard_group_size", {"1"}, {"--fsdp_sharding_strategy", "HYBRID_SHARD"}},
      {"--parallelism_config_dp_replicate_size", {"2"}, {"--num_processes", "2"}},
      {"--parallelism_config_dp_shard_size",
       {"2"},
       {"--num_processes", "4", "--parallelism_config_dp_replicate_size", "2"}},
      {"--num_cpu_threads_per_process", {"7"}},
      {"--multi_gpu", {}},
      {"--tee", {"3"}},
      {"--log_dir", {folder_ + "/logs"}},
      {"--max_restarts", {"2"}},
      {"--grace_period", {"5"}},
      {"--role", {"worker"}},
  };
  LaunchOptions options;
  config::AccelerateInput accelerate;
  const config::OptionTable table = launch_table(options, accelerate);
  for (const config::Option& option : table.options()) {
    if (option.positional()) continue;
    const Words& names = option.names();
    std::string name = names[0];
    if (name.ends_with('*')) name.back() = 'x';
    const auto own = std::find_if(cases.begin(), cases.end(), [&](const LaunchCase& c) {
      return std::find(names.begin(), names.end(), c.flag) != names.end();
    });
    if (option.effect() == config::Option::Effect::kWorks) {
      if (own == cases.end()) {
        ADD_FAILURE() << name << " has no case: add a row to this file";
        continue;
      }
      Words flags = own->with;
      flags.push_back(own->flag);
      flags.insert(flags.end(), own->words.begin(), own->words.end());
      EXPECT_NE(effect(flags), effect(own->with)) << name << " changes nothing";
    } else {
      const bool is_refused = option.effect() == config::Option::Effect::kRefused;
      const std::string said = told({name + "=1"}) + told({name + "=2"});
      EXPECT_NE(said.find(name + (is_refused ? " is not supported: " : " has no effect: ")), std::string::npos)
          << name << ": " << said;
    }
  }
}

TEST_F(LaunchFlags, OfAccelerateLaunchAreAllKnown) {
  std::istringstream flags(read_file(std::string(TESSERA_TEST_DATA) + "/flags/launch.txt"));
  for (std::string flag; std::getline(flags, flag);) {
    if (flag.empty() || flag.starts_with("#")) continue;
    const std::string typed = "--" + flag + (flag.starts_with("no_") ? "" : "=1");
    EXPECT_EQ(told({typed}).find("unknown flag"), std::string::npos) << flag;
  }
}

TEST_F(LaunchFlags, AModuleIsStartedAsItsInterpreterIs) {
  for (const char* flag : {"-m", "--module"}) {
    const std::string said = told({flag});
    EXPECT_NE(said.find("write 'tessera launch ... python -m MODULE'"), std::string::npos) << said;
  }
}

TEST_F(LaunchFlags, EverythingWrongIsSaidAtOnce) {
  const std::string said = told({"--num_processes", "0", "--tee", "7", "--mixed_precision", "fp9", "--num_machine", "2",
                                 "--use_deepspeed", "--max_restarts=-1"});
  for (const char* part : {"6 problems", "num_processes must be at least 1", "--tee expects 0 to 3, found 7",
                           "--mixed_precision expects one of no, fp16, bf16, fp8, found 'fp9'",
                           "unknown flag --num_machine (did you mean '--num_machines'?)",
                           "--use_deepspeed is not supported", "--max_restarts expects 0 or more, found -1"})
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
}

TEST_F(LaunchFlags, SizesOfParallelismAreCheckedAsThoseOfTheFile) {
  const auto with = [](const std::string& replicate, const std::string& shard) {
    return effect({"--num_processes", "4", "--parallelism_config_dp_replicate_size", replicate,
                   "--parallelism_config_dp_shard_size", shard});
  };
  EXPECT_NE(with("0", "1").find("must be at least 1, found 0 and 1"), std::string::npos) << with("0", "1");
  EXPECT_NE(with("1", "-3").find("must be at least 1, found 1 and -3"), std::string::npos) << with("1", "-3");
  for (const char* large : {"65536", "3"})
    EXPECT_NE(with(large, large).find("must be num_processes 4"), std::string::npos) << with(large, large);
  EXPECT_EQ(with("2", "2").find("must be"), std::string::npos) << with("2", "2");
}

TEST_F(LaunchFlags, ADefaultFileThatMayNotBeReadIsAbsentWithAWarning) {
  std::filesystem::create_directories(folder_ + "/accelerate");
  write_file_atomically(folder_ + "/accelerate/default_config.yaml", "num_processes: 3\n");
  const pid_t child = ::fork();
  if (child == 0) {
    // Root may read everything.
    std::filesystem::permissions(folder_ + "/accelerate", std::filesystem::perms::none);
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    const LaunchPlan found = plan({});
    const bool warns = found.warnings.size() == 1 && found.warnings[0].find("is taken for absent") != std::string::npos;
    ::_exit(warns && found.accelerate.num_processes == 1 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::filesystem::permissions(folder_ + "/accelerate", std::filesystem::perms::owner_all);
  EXPECT_EQ(plan({}).accelerate.num_processes, 3);
}

TEST_F(LaunchFlags, VariablesThatTheLaunchSetsAnewAreNamed) {
  const auto warned = [](const Words& flags) { return fmt::format("{}", fmt::join(plan(flags).warnings, "\n")); };
  ::setenv("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT", 1);
  ::setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);
  ::setenv("FSDP_IGNORED_MODULES", "lm_head", 1);  // nothing else says it: the ranks see it
  EXPECT_EQ(warned({}),
            "the environment's FSDP_STATE_DICT_TYPE=SHARDED_STATE_DICT has no effect: the launch says FULL_STATE_DICT "
            "(--fsdp_state_dict_type, or the file)");
  EXPECT_EQ(
      warned({"--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--mixed_precision", "no"}),
      "the environment's ACCELERATE_MIXED_PRECISION=bf16 has no effect: the launch says no (--mixed_precision, or "
      "the file)");
  for (const char* name : {"FSDP_STATE_DICT_TYPE", "ACCELERATE_MIXED_PRECISION", "FSDP_IGNORED_MODULES"})
    ::unsetenv(name);
  EXPECT_EQ(warned({}), "");
}

}  // namespace
}  // namespace tessera::launch
