// Who a process is by SLURM's variables, as the manuals of srun and sbatch give them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "base/rank_environment.h"
#include "comm/rendezvous/connect_hosts.h"
#include "support/program.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

/// What read_rank_environment() makes of them: "3 of 4, local 1, 0 here", "no rank", or an error.
std::string rank_by(const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::string text = "no rank";
  try {
    const RankEnvironment found = read_rank_environment();
    if (found.found)
      text = std::to_string(found.rank) + " of " + std::to_string(found.world_size) + ", local " +
             std::to_string(found.local_rank) + ", " + std::to_string(found.local_world_size) + " here";
  } catch (const ConfigError& e) {
    text = e.what();
  }
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return text;
}

TEST(Slurm, TasksOfAStepAreRanks) {
  EXPECT_EQ(rank_by({{"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", "3"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_NNODES", "2"}}),
            "3 of 4, local 1, 0 here");
  EXPECT_EQ(rank_by({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS", "2"}}),
            "1 of 2, local 1, 2 here");
}

/// srun -n 2 -N 1 in a job of 8 tasks on 2 nodes, with --preserve-env.
TEST(Slurm, AStepMayBeSmallerThanItsJob) {
  EXPECT_EQ(rank_by({{"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_PROCID", "1"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_NTASKS", "8"},
                     {"SLURM_NNODES", "2"}}),
            "1 of 2, local 1, 2 here");
}

TEST(Slurm, ABatchScriptOrAShellIsASingleProcess) {
  EXPECT_EQ(rank_by({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}), "no rank");
  EXPECT_EQ(rank_by({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), "no rank");
  EXPECT_EQ(rank_by({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}}), "no rank");
}

TEST(Slurm, ABatchScriptIsNotTakenForOneOfItsTasks) {
  EXPECT_SAYS(rank_by({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), "start it with srun");
}

TEST(Slurm, ALauncherInsideDecides) {
  EXPECT_EQ(rank_by({{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "4"},
                     {"RANK", "1"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"}}),
            "1 of 2, local 1, 2 here");
}

TEST(Slurm, StepsThatRunAtOnceMeetAtPortsOfTheirOwn) {
  std::set<int> ports;
  for (const char* step : {"7.0", "7.1", "8.0", "8.1", "4294967.0"}) {
    EXPECT_GE(port_of_step(step), 20000);
    EXPECT_LT(port_of_step(step), 30000);
    ports.insert(port_of_step(step));
  }
  EXPECT_EQ(ports.size(), 5u);
}

TEST(Slurm, AListOfNodesThatIsNoneIsNamed) {
  ::setenv("SLURM_STEP_NODELIST", "gpu[03-05", 1);
  const HostsRendezvous rendezvous{{.found = true,
                                    .family = "SLURM",
                                    .rank = 0,
                                    .world_size = 2,
                                    .local_world_size = 0,
                                    .job_key = "",
                                    .slurm_step = "7.0"},
                                   0,
                                   std::chrono::seconds(1),
                                   std::chrono::seconds(1)};
  try {
    connect_hosts(rendezvous);
    ADD_FAILURE();
  } catch (const ConfigError& e) {
    EXPECT_SAYS(std::string(e.what()), "SLURM_STEP_NODELIST must be a list of nodes");
    EXPECT_SAYS(std::string(e.what()), "'gpu[03-05'");
  }
  ::unsetenv("SLURM_STEP_NODELIST");
}

}  // namespace
}  // namespace tessera::comm
