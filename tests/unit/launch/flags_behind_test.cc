#include "launch/flags_behind.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "config/accelerate.h"
#include "launch/profiles.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Words = std::vector<std::string>;

class FlagsBehindATask : public testing::Test {
 protected:
  FlagsBehindATask() : folder_(testing::TempDir() + "flags_behind_" + std::to_string(getpid())) {
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"}) ::unsetenv(name);
    ::setenv("HF_HOME", folder_.c_str(), 1);  // no default_config.yaml there
    std::filesystem::create_directories(folder_);
    write_file_atomically(file_, "num_processes: 2\nlearning_rate: 1e-4\ndebug: true\nfsdp_version: 2\n");
  }
  ~FlagsBehindATask() override { std::filesystem::remove_all(folder_); }

  static Words in_front(const Words& words) { return with_flags_in_front(words, kTasks); }
  static config::AccelerateConfig planned(const Words& words) { return plan_launch(words, kTasks)->accelerate; }

  inline static const Tasks kTasks = {{"sft", "verify"}, "/bin/true", {"sft"}};
  std::string folder_, file_ = folder_ + "/sft.yaml";
};

TEST_F(FlagsBehindATask, AreMovedToTheFrontWithTheirValues) {
  EXPECT_EQ(in_front({"--tee", "1", "sft", "--seed", "1", "--num-processes", "3", "--fsdp_version=2", "--bf16"}),
            (Words{"--num-processes", "3", "--fsdp_version=2", "--tee", "1", "sft", "--seed", "1", "--bf16"}));
}

TEST_F(FlagsBehindATask, StayWhereTheTaskHasThemToo) {
  const Words words = {"sft", "--debug", "--use_cpu", "true", "--fsdp_transformer_layer_cls_to_wrap", "Block"};
  EXPECT_EQ(in_front(words), words);
}

TEST_F(FlagsBehindATask, StayWithOtherTasksAndPrograms) {
  for (const char* name : {"verify", "/bin/echo"}) {
    const Words words = {name, "--num_processes", "3"};
    EXPECT_EQ(in_front(words), words);
  }
}

TEST_F(FlagsBehindATask, OfItsFileAreTheWeakest) {
  const Words file = {"--num_processes=2", "--fsdp_version=2"};
  for (const Words& named : {Words{file_}, Words{"--config", file_}, Words{"--config=" + file_}}) {
    Words words = {"--num_processes", "4", "sft", "--num_processes", "3"}, expected = file;
    words.insert(words.end(), named.begin(), named.end());
    expected.insert(expected.end(), {"--num_processes", "3", "--num_processes", "4", "sft"});
    expected.insert(expected.end(), named.begin(), named.end());
    EXPECT_EQ(in_front(words), expected);
  }
  EXPECT_EQ(planned({"sft", file_}).num_processes, 2);
  EXPECT_EQ(planned({"sft", file_, "--num_processes", "3"}).num_processes, 3);
  EXPECT_EQ(planned({"--num_processes", "4", "sft", file_, "--num_processes", "3"}).num_processes, 4);
  EXPECT_EQ(planned({"sft", file_}).fsdp.version, 2);
}

TEST_F(FlagsBehindATask, OfItsFileMayBeLists) {
  write_file_atomically(file_, "gpu_ids: [0, 1]\nmachine_rank:\nfsdp_version: {a: 1}\n");
  EXPECT_EQ(in_front({"sft", file_}), (Words{"--gpu_ids=0,1", R"(--fsdp_version={"a":1})", "sft", file_}));
}

TEST_F(FlagsBehindATask, AreNotReadFromAFileOfDataOrOfTheLauncher) {
  EXPECT_FALSE(asks_for_launch({"--dataset_name", file_}));
  write_file_atomically(file_, "compute_environment: LOCAL_MACHINE\nnum_processes: 2\n");
  EXPECT_FALSE(asks_for_launch({file_}));
}

TEST_F(FlagsBehindATask, StartRanksUnlessThisIsOneOrHelpIsAskedFor) {
  const Words flags = {"--seed", "1", "--num_processes", "2"};
  EXPECT_TRUE(asks_for_launch(flags));
  EXPECT_TRUE(asks_for_launch({"--config", file_}));
  EXPECT_FALSE(asks_for_launch({"--seed", "1"}));
  EXPECT_FALSE(asks_for_launch({"--num_processes", "2", "--help"}));
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"}) {
    ::setenv(name, "0", 1);
    EXPECT_FALSE(asks_for_launch(flags)) << name;
    ::unsetenv(name);
  }
}

TEST_F(FlagsBehindATask, WithoutAValueAreAnError) {
  try {
    in_front({"sft", "--num_processes", "--seed", "1"});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("--num_processes expects an integer, found the flag --seed"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(FlagsBehindATask, NameOneOfTrlsFilesOrAFile) {
  const auto named = [](const std::string& name) { return planned({"--accelerate_config", name, "sft"}); };
  EXPECT_EQ(named("fsdp1").fsdp.version, 1);
  EXPECT_EQ(named("fsdp2").fsdp.version, 2);
  EXPECT_EQ(named("fsdp2").fsdp.sharding_strategy, config::ShardingStrategy::kFullShard);
  EXPECT_FALSE(named("multi_gpu").use_fsdp);
  for (const std::string& name : profile_names()) {
    EXPECT_EQ(named(name).mixed_precision, config::MixedPrecision::kBf16) << name;
    EXPECT_EQ(named(name).num_processes, 1) << name;
  }
  write_file_atomically(folder_ + "/own.yaml", "num_processes: 3\ndistributed_type: FSDP\n");
  EXPECT_EQ(named(folder_ + "/own.yaml").num_processes, 3);
}

TEST_F(FlagsBehindATask, NameNothingElse) {
  const auto said = [](const Words& flags) -> std::string {
    Words words = flags;
    words.emplace_back("sft");
    try {
      planned(words);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "nothing";
  };
  EXPECT_NE(said({"--accelerate_config", "zero3"}).find("belongs to another engine (DeepSpeed)"), std::string::npos);
  EXPECT_NE(said({"--accelerate_config", "fsdp_2"})
                .find("is neither a file nor one of fsdp1, fsdp2, multi_gpu, "
                      "single_gpu (did you mean 'fsdp2'?)"),
            std::string::npos);
  EXPECT_NE(said({"--accelerate_config", "fsdp2", "--config_file", "a.yaml"}).find("keep one"), std::string::npos);
}

}  // namespace
}  // namespace tessera::launch
