// A task that was not started by `tessera launch`: the variables that torchrun, mpirun and SLURM give to their
// processes are all it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/loaded_programs.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::Finished;
using test::Subprocess;
using test::Variables;

/// What a launcher sets for one of two ranks.
struct Launcher {
  const char* name;
  const char* backend;  // that the ranks find
  Variables (*variables)(int rank);
};

std::string text(int number) {
  return std::to_string(number);
}

// A port that tells this test's ranks from others; nobody listens on it.
std::string port_of(int number) {
  return text(20000 + ::getpid() % 12000 + number);
}

/// Libraries with the names of MPI's that cannot be loaded.
std::string folder_without_mpi() {
  const std::string folder = testing::TempDir() + "no_mpi_" + text(::getpid());
  fs::create_directories(folder);
  for (const char* name : {"/libmpi.so.12", "/libmpich.so.12"}) std::ofstream(folder + name) << "none";
  return folder;
}

const Launcher kLaunchers[] = {
    {"torchrun", "shm",
     [](int rank) -> Variables {
       return {{"RANK", text(rank)},
               {"WORLD_SIZE", "2"},
               {"LOCAL_RANK", text(rank)},
               {"LOCAL_WORLD_SIZE", "2"},
               {"GROUP_RANK", "0"},
               {"GROUP_WORLD_SIZE", "1"},
               {"ROLE_RANK", text(rank)},
               {"ROLE_WORLD_SIZE", "2"},
               {"MASTER_ADDR", "127.0.0.1"},
               {"MASTER_PORT", port_of(0)},
               {"OMP_NUM_THREADS", "1"},
               {"TORCHELASTIC_RESTART_COUNT", "0"},
               {"TORCHELASTIC_RUN_ID", "none"},
               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
     }},
    {"OpenMpi", "shm",
     [](int rank) -> Variables {
       return {{"OMPI_COMM_WORLD_RANK", text(rank)},
               {"OMPI_COMM_WORLD_SIZE", "2"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", text(rank)},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
               {"OMPI_UNIVERSE_SIZE", "2"},
               {"PMIX_RANK", text(rank)},
               {"PMIX_NAMESPACE", port_of(1)}};
     }},
    {"Mpich", "shm",
     [](int rank) -> Variables {
       return {{"PMI_RANK", text(rank)},
               {"PMI_SIZE", "2"},
               {"MPI_LOCALRANKID", text(rank)},
               {"MPI_LOCALNRANKS", "2"},
               {"PMI_JOBID", port_of(2)}};
     }},
    {"Slurm", "shm",
     [](int rank) -> Variables {
       return {{"SLURM_PROCID", text(rank)}, {"SLURM_LOCALID", text(rank)}, {"SLURM_NTASKS", "2"},
               {"SLURM_NODEID", "0"},        {"SLURM_NNODES", "1"},         {"SLURM_JOB_ID", port_of(3)},
               {"SLURM_STEP_ID", "0"},       {"SLURM_TASKS_PER_NODE", "2"}};
     }},
    {"TorchrunOnTwoHosts", "hosts",
     [](int rank) -> Variables {
       return {{"RANK", text(rank)},         {"WORLD_SIZE", "2"},        {"LOCAL_RANK", "0"},
               {"LOCAL_WORLD_SIZE", "1"},    {"GROUP_RANK", text(rank)}, {"GROUP_WORLD_SIZE", "2"},
               {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port_of(4)}};
     }},
    {"SlurmOnTwoHosts", "hosts",
     [](int rank) -> Variables {
       return {{"SLURM_PROCID", text(rank)}, {"SLURM_LOCALID", "0"},       {"SLURM_NTASKS", "2"},
               {"SLURM_NODEID", text(rank)}, {"SLURM_NNODES", "2"},        {"SLURM_JOB_ID", port_of(5)},
               {"SLURM_STEP_ID", "0"},       {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port_of(5)},
               {"OMP_NUM_THREADS", "1"}};
     }},
    // srun --mpi=pmi2 where there is no MPI: gloo moves the bytes, and the ranks meet on the step's first node.
    {"SlurmWithPmiOnTwoHosts", "hosts",
     [](int rank) -> Variables {
       return {{"PMI_RANK", text(rank)},
               {"PMI_SIZE", "2"},
               {"SLURM_PROCID", text(rank)},
               {"SLURM_LOCALID", "0"},
               {"SLURM_NTASKS", "2"},
               {"SLURM_NODEID", text(rank)},
               {"SLURM_NNODES", "2"},
               {"SLURM_JOB_ID", port_of(6)},
               {"SLURM_STEP_ID", "0"},
               {"SLURM_STEP_NODELIST", "localhost"},
               {"LD_LIBRARY_PATH", folder_without_mpi()},
               {"OMP_NUM_THREADS", "1"}};
     }},
};

/// Debian's, and TESSERA_TEST_MPIRUN.
std::vector<std::string> installed_mpiruns() {
  std::vector<std::string> all = {"/usr/bin/mpirun.mpich", "/usr/bin/mpirun.openmpi"};
  if (const char* another = std::getenv("TESSERA_TEST_MPIRUN")) all.emplace_back(another);
  std::erase_if(all, [](const std::string& path) { return !fs::exists(path); });
  return all;
}

const Variables kForMpirun = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                              {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                              {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                              {"OMP_NUM_THREADS", "1"}};
constexpr const char* kNoMpirun = "neither Debian's mpich nor its openmpi-bin is installed";

class Environments : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = testing::TempDir() + "environments_" + text(::getpid());
    fs::create_directories(folder_);
    const Finished r = test::run({TESSERA_BINARY, "init-model", kDemo + "model", folder_ + "/model"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  static void TearDownTestSuite() {
    fs::remove_all(folder_);
    fs::remove_all(folder_without_mpi());
  }

  static std::vector<std::string> task(const std::string& output) {
    return {"seq2seq",
            "--model_name_or_path",
            folder_ + "/model",
            "--dataset_path",
            kDemo + "data/Sentences_demo.txt",
            "--output_dir",
            folder_ + output,
            "--max_steps",
            "2",
            "--logging_steps",
            "1",
            "--do_eval",
            "false",
            "--print_model",
            "false",
            "--disable_tqdm",
            "--save_model",
            "false"};
  }

  static std::vector<double> losses(const std::string& output) {
    std::vector<double> found;
    std::ifstream in(folder_ + output + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("train_loss_exact")) found.push_back(row["train_loss_exact"]);
    }
    return found;
  }

  static inline const std::string kDemo = std::string(TESSERA_TEST_DATA) + "/../../examples/demo/";
  static inline std::string folder_;

 private:
  test::FromDisk starts_;
};

TEST_F(Environments, TorchrunMpirunAndSlurmStartATaskAsOurLaunchDoes) {
  std::vector<std::string> launched = {TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2"};
  for (const std::string& word : task("/launch")) launched.push_back(word);
  const Finished r = test::run(launched);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto expected = losses("/launch");
  ASSERT_EQ(expected.size(), 2u);
  for (const Launcher& launcher : kLaunchers) {
    const std::string output = std::string("/") + launcher.name;
    std::vector<std::string> command = {TESSERA_BINARY};
    for (const std::string& word : task(output)) command.push_back(word);
    Subprocess zero(command, launcher.variables(0)), one(command, launcher.variables(1));
    const Finished first = zero.finish(), second = one.finish();
    EXPECT_EQ(first.exit_code, 0) << launcher.name << first.err;
    EXPECT_EQ(second.exit_code, 0) << launcher.name << second.err;
    EXPECT_NE(first.out.find(std::string("Ranks = 2 (") + launcher.backend + ")"), std::string::npos)
        << launcher.name << first.out;
    EXPECT_EQ(losses(output), expected) << launcher.name;
  }
}

/// Without an address to meet at: MPI has joined the ranks, and moves the bytes.
TEST_F(Environments, MpirunOnTwoHostsNeedsNoAddressAndTrainsAsOneHost) {
  const auto mpiruns = installed_mpiruns();
  if (mpiruns.empty()) GTEST_SKIP() << kNoMpirun;
  std::vector<std::string> launched = {
      TESSERA_BINARY, "launch", "--cpu", "--num_processes", "4", "--num_cpu_threads_per_process", "1"};
  for (const std::string& word : task("/four")) launched.push_back(word);
  const Finished r = test::run(launched);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  ASSERT_EQ(losses("/four").size(), 2u);
  for (const std::string& mpirun : mpiruns) {
    const std::string output = "/" + fs::path(mpirun).filename().string();
    // All are on this host: the first two processes play one host, the others another.
    std::vector<std::string> command = {mpirun,
                                        "-n",
                                        "4",
                                        "/bin/sh",
                                        "-c",
                                        "GROUP_RANK=$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} / 2)) "
                                        "OMPI_COMM_WORLD_LOCAL_SIZE=2 MPI_LOCALNRANKS=2 exec \"$@\"",
                                        "sh",
                                        TESSERA_BINARY};
    for (const std::string& word : task(output)) command.push_back(word);
    const Finished run = test::run(command, kForMpirun);
    EXPECT_EQ(run.exit_code, 0) << mpirun << run.err;
    EXPECT_NE(run.out.find("Ranks = 4 (hosts)"), std::string::npos) << mpirun << run.out;
    EXPECT_EQ(losses(output), losses("/four")) << mpirun;
  }
}

TEST_F(Environments, RanksOnOtherHostsNeedAnAddressToMeetAt) {
  std::vector<std::string> command = {TESSERA_BINARY};
  for (const std::string& word : task("/address")) command.push_back(word);
  const Finished r = test::run(command, {{"OMPI_COMM_WORLD_RANK", "0"},
                                         {"OMPI_COMM_WORLD_SIZE", "4"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                         {"TESSERA_TRANSPORT", "gloo"}});
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_NE(r.err.find("2 of 4 ranks are on this host"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("MASTER_ADDR"), std::string::npos) << r.err;
}

/// Two srun of one job at once, with one MASTER_PORT.
TEST_F(Environments, TasksOfAnotherStepOfSlurmAreNotTakenForRanks) {
  const auto start = [](int rank, const char* step, const std::string& output) {
    std::vector<std::string> command = {TESSERA_BINARY};
    for (const std::string& word : task(output)) command.push_back(word);
    Variables variables = kLaunchers[5].variables(rank);
    variables.emplace_back("SLURM_STEP_ID", step);
    return std::make_unique<Subprocess>(command, variables);
  };
  const auto stranger = start(1, "1", "/another_step"), zero = start(0, "0", "/step");
  std::this_thread::sleep_for(std::chrono::seconds(2));  // in which the two would have met
  const auto one = start(1, "0", "/step");
  EXPECT_EQ(zero->finish().exit_code, 0);
  EXPECT_EQ(one->finish().exit_code, 0);
  const Finished r = stranger->finish();
  EXPECT_EQ(r.exit_code, 5) << r.err;
  EXPECT_NE(r.err.find("the rendezvous at 127.0.0.1:"), std::string::npos) << r.err;
}

TEST_F(Environments, ARankThatHangsIsNamedWithTheOperation) {
  std::vector<std::string> command = {TESSERA_BINARY};
  for (const std::string& word : task("/hang")) command.push_back(word == "2" ? "100000" : word);
  for (const Launcher& launcher : {kLaunchers[0], kLaunchers[4]}) {
    auto variables = [&](int rank) {
      Variables all = launcher.variables(rank);
      all.emplace_back("TESSERA_COMM_TIMEOUT_S", "2");
      all.emplace_back("TESSERA_JOB_ID", "hang");
      return all;
    };
    Subprocess zero(command, variables(0)), one(command, variables(1));
    ASSERT_TRUE(zero.wait_for_output("Running training"));
    one.signal(SIGSTOP);
    const Finished first = zero.finish(std::chrono::seconds(20));
    one.signal(SIGKILL);
    EXPECT_NE(first.exit_code, 0);
    EXPECT_NE(first.err.find("rank 0: operation "), std::string::npos) << first.err;
    EXPECT_NE(first.err.find(": rank 1 "), std::string::npos) << first.err;
  }
}

TEST_F(Environments, HalfOfTheVariablesIsAnErrorThatNamesTheOther) {
  std::vector<std::string> command = {TESSERA_BINARY};
  for (const std::string& word : task("/half")) command.push_back(word);
  const Finished r = test::run(command, {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_NE(r.err.find("SLURM_NTASKS"), std::string::npos) << r.err;
}

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::vector<std::string> kWrongWords = {TESSERA_BINARY, "sft", "--nonsense"};
constexpr const char* kWhatIsWrong = "unknown flag --nonsense";

/// The others end later: mpirun and torchrun end all ranks with the first.
TEST(UsageError, IsSaidByRank0AloneWhereAnotherLauncherHasStartedTheRanks) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> wrong_command = {TESSERA_BINARY, "nonsense"};
  std::vector<std::unique_ptr<Subprocess>> others;
  for (const Launcher& launcher : kLaunchers)
    for (const auto& words : {kWrongWords, wrong_command})
      others.push_back(std::make_unique<Subprocess>(words, launcher.variables(1)));
  for (const Launcher& launcher : kLaunchers) {
    const Finished zero = test::run(kWrongWords, launcher.variables(0));
    EXPECT_EQ(zero.exit_code, 2) << launcher.name;
    EXPECT_EQ(count_of(kWhatIsWrong, zero.err), 1u) << launcher.name << zero.err;
    const Finished command = test::run(wrong_command, launcher.variables(0));
    EXPECT_EQ(count_of("unknown command 'nonsense'", command.err), 1u) << launcher.name << command.err;
  }
  for (const auto& other : others) {
    const Finished one = other->finish();
    EXPECT_EQ(one.exit_code, 2);
    EXPECT_EQ(one.out + one.err, "");
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(UsageError, IsSaidOnceUnderMpirun) {
  const auto mpiruns = installed_mpiruns();
  if (mpiruns.empty()) GTEST_SKIP() << kNoMpirun;
  for (const std::string& mpirun : mpiruns) {
    std::vector<std::string> command = {mpirun, "-n", "3"};
    command.insert(command.end(), kWrongWords.begin(), kWrongWords.end());
    const Finished run = test::run(command, kForMpirun);
    EXPECT_EQ(run.exit_code, 2) << mpirun << run.err;
    EXPECT_EQ(count_of(kWhatIsWrong, run.out + run.err), 1u) << mpirun << run.err;
  }
}

/// Here ranks 2 and 3 are started, of which the launcher shows the one that fails first.
TEST(UsageError, IsSaidOnEachMachineThatOurLauncherStarts) {
  std::vector<std::string> command = {TESSERA_BINARY,
                                      "launch",
                                      "--cpu",
                                      "--num_machines",
                                      "2",
                                      "--machine_rank",
                                      "1",
                                      "--num_processes",
                                      "4",
                                      "--main_process_ip",
                                      "127.0.0.1",
                                      "--main_process_port",
                                      port_of(7)};
  command.insert(command.end(), kWrongWords.begin() + 1, kWrongWords.end());
  const Finished run = test::run(command);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_EQ(count_of(kWhatIsWrong, run.err), 1u) << run.err;
}

/// Files, for example.
TEST(UsageError, IsNotWhatMayDifferBetweenHosts) {
  const std::string file = testing::TempDir() + "flags_" + text(::getpid()) + ".yaml";
  std::ofstream(file) << "nonsense: 1\n";
  const Finished run = test::run({TESSERA_BINARY, "sft", file}, kLaunchers[0].variables(1));
  fs::remove(file);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_NE(run.err.find(file + ":1: unknown option 'nonsense'"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace tessera
