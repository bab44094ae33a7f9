// What the documents promise under SLURM, on a cluster: scripts/slurm.sh plays one on this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::Finished;

class Slurm : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!is_there()) return;
    folder_ = new_folder();
    fs::create_directory(folder_ + "/data");
    for (const char* name : {"train.jsonl", "test.jsonl"})
      fs::copy(std::string(TESSERA_TEST_DATA) + "/tiny_chat/" + name, folder_ + "/data/" + name);
    write_settings(80);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("PATH", (fs::path(TESSERA_BINARY).parent_path().string() + ":" + std::getenv("PATH")).c_str(), 1);
    const Finished r = shell("tessera init-model " TESSERA_TEST_DATA "/tiny_chat base");
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  static void TearDownTestSuite() {
    if (is_there()) fs::remove_all(folder_);
  }
  void SetUp() override {
    if (!is_there())
      GTEST_SKIP() << "there is no cluster: scripts/slurm.sh build/release/test_process --gtest_filter='Slurm.*'";
  }

  static void write_settings(int max_steps) {
    std::ofstream(folder_ + "/sft.yaml") << "model_name_or_path: base\n"
                                            "dataset_name: data\n"
                                            "max_seq_length: 64\n"
                                            "logging_steps: 1\n"
                                            "save_steps: 20\n"
                                            "disable_tqdm: true\n"
                                            "print_model: false\n"
                                            "max_steps: "
                                         << max_steps << "\n";
  }
  static std::string text_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }

  static bool is_there() { return std::getenv("SLURM_CONF") != nullptr; }
  static Finished shell(const std::string& script) {
    return test::Subprocess({"/bin/bash", "-c", "cd " + folder_ + "; " + script}).finish(std::chrono::minutes(5));
  }
  /// Of a training run of a few steps.
  static std::string task(const std::string& output, int steps = 3) {
    return " tessera sft sft.yaml --save_strategy no --max_steps " + std::to_string(steps) + " --output_dir " + output;
  }
  static std::string words(const std::string& script) {
    const Finished r = shell(script);
    return r.out + r.err;
  }

  static std::vector<double> losses(const std::string& output) {
    std::vector<double> found;
    std::ifstream in(folder_ + "/" + output + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("train_loss_exact")) found.push_back(row["train_loss_exact"]);
    }
    return found;
  }
  static std::vector<double> losses_on_one_host(int ranks) {
    const std::string output = "launched" + std::to_string(ranks);
    if (!fs::exists(folder_ + "/" + output)) {
      const Finished r =
          shell("tessera launch --cpu --num_processes " + std::to_string(ranks) + task(output).substr(8));
      EXPECT_EQ(r.exit_code, 0) << r.err;
    }
    return losses(output);
  }

  /// Of scontrol: "JobState", "ExitCode", "Restarts".
  static std::string state(const std::string& job, const std::string& field) {
    const std::string all = shell("scontrol --oneliner show job " + job).out;
    const std::size_t at = all.find(" " + field + "=") + field.size() + 2;
    return all.substr(at, all.find(' ', at) - at);
  }
  static void wait_for(const std::string& job, const std::string& wanted) {
    for (int i = 0; i < 1800 && state(job, "JobState") != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(state(job, "JobState"), wanted) << text_of(folder_ + "/slurm-" + job + ".out");
  }
  /// Until the job's output has so many lines with this text.
  static void wait_for_lines(const std::string& job, const std::string& text, int lines) {
    const std::string output = folder_ + "/slurm-" + job + ".out";
    for (int i = 0; i < 3600 && count(text_of(output), text) < lines; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_GE(count(text_of(output), text), lines) << text_of(output);
  }
  static std::string submitted(const std::string& flags = "") {
    const std::string job =
        shell("sbatch --parsable " + flags + " " TESSERA_TEST_DATA "/../../examples/cluster/tessera.sbatch").out;
    return job.substr(0, job.find('\n'));
  }

  static std::string new_folder() {  // a number of a process is not of one cluster alone
    std::string name = testing::TempDir() + "slurm_XXXXXX";
    return ::mkdtemp(name.data());
  }
  static inline std::string folder_;
};

TEST_F(Slurm, TasksOfTwoNodesTrainAsTheRanksOfOneHost) {
  const Finished r = shell("srun -N2 --ntasks-per-node=2" + task("srun"));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_SAYS(r.out, "Ranks = 4 (hosts)");
  EXPECT_EQ(count(r.out, "{'loss'"), 3) << r.out;
  EXPECT_EQ(losses("srun"), losses_on_one_host(4));
  EXPECT_EQ(losses("srun").size(), 3u);
}

TEST_F(Slurm, NodesMayHaveDifferentNumbersOfTasks) {
  EXPECT_SAYS(words("srun -N2 -n3" + task("uneven")), "Ranks = 3 (hosts)");
  EXPECT_EQ(losses("uneven"), losses_on_one_host(3));
}

TEST_F(Slurm, AStepMayBeSmallerThanItsAllocation) {
  EXPECT_SAYS(words("salloc -N2 --ntasks-per-node=2 srun -N1 -n2" + task("small")), "Ranks = 2 (shm)");
  EXPECT_EQ(losses("small"), losses_on_one_host(2));
}

TEST_F(Slurm, TheShellOfAnAllocationIsASingleProcessAndMayLaunch) {
  EXPECT_SAYS(words("salloc -N2 --ntasks-per-node=2" + task("single")), "Ranks = 1 (solo)");
  EXPECT_SAYS(words("salloc -N2 --ntasks-per-node=2 tessera launch --cpu --num_processes 2" + task("launch").substr(8)),
              "Ranks = 2 (shm)");
}

TEST_F(Slurm, LaunchersOfSeveralNodesMayBeItsTasks) {
  const std::string launch =
      "tessera launch --cpu --num_machines 2 --machine_rank $SLURM_NODEID --main_process_ip n1 "
      "--main_process_port 29511 --num_processes 4";
  EXPECT_SAYS(words("srun -N2 --ntasks-per-node=1 bash -c '" + launch + task("launchers").substr(8) + "'"),
              "Ranks = 4 (hosts)");
  EXPECT_EQ(losses("launchers"), losses_on_one_host(4));
}

/// With MPI where it is installed.
TEST_F(Slurm, EveryMpiOfSrunTrainsAlike) {
  const std::string kinds = words("srun --mpi=list");
  int n = 0;
  for (const char* kind : {"none", "pmi2", "pmix"}) {
    if (shell(std::string("srun -n1 --mpi=") + kind + " true").exit_code != 0) continue;  // its library is missing
    for (const char* transport : {"", "TESSERA_TRANSPORT=gloo "}) {
      const std::string output = "mpi" + std::to_string(n++);
      const Finished r =
          shell(std::string(transport) + "srun --mpi=" + kind + " -N2 --ntasks-per-node=2" + task(output));
      EXPECT_EQ(r.exit_code, 0) << kind << transport << r.err;
      EXPECT_EQ(losses(output), losses_on_one_host(4)) << kind << transport;
    }
  }
  EXPECT_SAYS(words("TESSERA_TRANSPORT=mpi srun --mpi=none -N2 -n2" + task("none")), "srun with --mpi=pmi2");
}

TEST_F(Slurm, TwoStepsOfAJobMayRunAtOnce) {
  const Finished r = shell("salloc -N2 --ntasks-per-node=2 bash -c 'srun -N2 -n2 --exact" + task("one") +
                           " & one=$!; srun -N2 -n2 --exact" + task("two") + " && wait $one'");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const char* output : {"one", "two"}) EXPECT_EQ(losses(output), losses_on_one_host(2)) << output;
}

TEST_F(Slurm, OfTwoStepsAtOnePortOneTrainsAndTheOtherNamesThePort) {
  const std::string step = "srun -N2 -n2 --exact --kill-on-bad-exit=1";
  const Finished r = shell("export MASTER_PORT=29512; salloc -N2 --ntasks-per-node=2 bash -c '" + step + task("first") +
                           " & " + step + task("second") + "; wait'");
  EXPECT_SAYS(r.err, "n1:29512 (MASTER_ADDR:MASTER_PORT): listening at 10.78.0.1 port 29512: Address already in use");
  EXPECT_EQ(losses("first").size() + losses("second").size(), 3u) << r.out << r.err;
}

TEST_F(Slurm, AnOrderOfTasksThatSplitsNodesIsRefused) {
  const Finished r = shell("srun -N2 -n4 --distribution=cyclic" + task("cyclic"));
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_SAYS(r.err, "srun --distribution=block");
}

TEST_F(Slurm, ABatchScriptWithoutSrunIsRefused) {
  shell("sbatch --wait -n4 --output=script.out --wrap '" + task("script") + "'");
  EXPECT_SAYS(text_of(folder_ + "/script.out"), "start it with srun");
}

/// srun gives the highest exit code of its tasks, and SLURM's TERM may reach another one before it sees the loss.
TEST_F(Slurm, ARankThatIsKilledEndsTheJob) {
  const std::string job = submitted();
  wait_for_lines(job, "{'loss'", 1);
  shell("srun --overlap --jobid=" + job + " -N1 -n1 -w n2 pkill --oldest --full -KILL '^tessera sft'");
  wait_for(job, "FAILED");
  const std::string code = state(job, "ExitCode");
  EXPECT_TRUE(code == "137:0" || code == "143:0") << code;
  EXPECT_SAYS(text_of(folder_ + "/slurm-" + job + ".out"), "it was killed or it crashed");
  fs::remove_all(folder_ + "/out");
}

/// The example as it is: cancelled, submitted again, queued again by its user and after a node was lost.
TEST_F(Slurm, TheExampleScriptResumesWithTheSameBits) {
  const std::string before = shell("ls /dev/shm").out;
  const Finished whole = shell("tessera launch --cpu --num_processes 8 sft sft.yaml --output_dir whole");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;

  const std::string first = submitted();
  wait_for_lines(first, "{'loss'", 5);
  shell("scancel " + first);
  wait_for(first, "CANCELLED");
  wait_for_lines(first, "interrupted after step", 1);

  const std::string second = submitted();
  const auto output = [&] { return text_of(folder_ + "/slurm-" + second + ".out"); };
  wait_for_lines(second, "{'loss'", 5);
  shell("scontrol requeue " + second);
  wait_for(second, "PENDING");
  wait_for_lines(second, "{'loss'", 10);
  shell("power off n2");
  wait_for(second, "PENDING");
  EXPECT_SAYS(output(), "the connection with the host of rank 4 is lost");
  shell("power on n2");
  wait_for(second, "COMPLETED");
  EXPECT_EQ(state(second, "Restarts"), "2");
  EXPECT_EQ(count(output(), "Ranks = 8 (hosts)"), 3) << output();  // nothing of it was overwritten
  EXPECT_EQ(text_of(folder_ + "/out/model.safetensors"), text_of(folder_ + "/whole/model.safetensors"));
  EXPECT_EQ(shell("ls /dev/shm").out, before);
  EXPECT_NE(shell("pgrep --full '^tessera sft'").exit_code, 0) << "a rank is left";
  fs::remove_all(folder_ + "/out");
}

TEST_F(Slurm, ARunSavesBeforeItsTimeIsOver) {
  write_settings(100000);
  const std::string job = submitted("--time=1 --signal=TERM@57");
  wait_for(job, "FAILED");
  EXPECT_EQ(state(job, "ExitCode"), "143:0");
  EXPECT_SAYS(text_of(folder_ + "/slurm-" + job + ".out"), "interrupted after step");
  fs::remove_all(folder_ + "/out");
}

}  // namespace
}  // namespace tessera
