// What a run's folder says of the run: files of tessera, of transformers' Trainer, of runs that went on or were killed.
#include "report/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

class RunRecords : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = folder_.path() + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    write_file_atomically(path.string(), text);
  }
  RunRecord read() const { return read_run(folder_.path(), "run"); }
  test::TempFolder folder_{"run_record"};
};

TEST_F(RunRecords, RowsBecomeSeriesByStepWithTheExactLoss) {
  put("metrics.jsonl",
      "{\"loss\": 2.5, \"grad_norm\": 1.5, \"learning_rate\": 0.001, \"epoch\": 0.5, \"step\": 10, "
      "\"train_loss_exact\": 2.4986,"
      " \"step_seconds\": 0.5, \"tokens_per_second\": 800, \"time\": 1}\n"
      "{\"eval_loss\": 2.25, \"eval_runtime\": 3, \"epoch\": 0.5, \"step\": 10, \"time\": 2}\n"
      "{\"step\": 10, \"samples\": [{\"prompt\": \"Hi\", \"completion\": \"Hello\", \"generated\": \"Ho\"}], \"time\": "
      "3}\n"
      "{\"loss\": null, \"epoch\": 1, \"step\": 20, \"train_loss_exact\": null, \"step_seconds\": 0.25, \"time\": "
      "4}\n");
  const RunRecord run = read();
  EXPECT_EQ(run.series.at("loss").at(10), 2.4986);
  EXPECT_TRUE(std::isnan(run.series.at("loss").at(20))) << "a loss that was no number leaves a gap";
  EXPECT_EQ(run.series.at("eval_loss").at(10), 2.25);
  EXPECT_EQ(run.series.at("tokens_per_second").at(10), 800);
  for (const char* no : {"epoch", "time", "step", "eval_runtime", "step_seconds", "train_loss_exact"})
    EXPECT_FALSE(run.series.contains(no)) << no;
  EXPECT_EQ(run.last_step, 20);
  EXPECT_EQ(run.samples.at(10).at(0).generated, "Ho");
  EXPECT_TRUE(run.summary.empty()) << "it is still running";
  const NamedNumbers phases = {{"training", 7.5}, {"evaluation", 3}};  // 10 steps of 0.5 s, 10 of 0.25 s
  EXPECT_EQ(run.phase_seconds, phases);
}

TEST_F(RunRecords, NumbersThatAreNoneAsPythonWritesThem) {
  put("trainer_state.json",
      "{\"max_steps\": 2, \"log_history\": [{\"loss\": NaN, \"grad_norm\": Infinity, \"note\": \"NaN \\\" NaN\", "
      "\"step\": 1}, {\"loss\": -Infinity, \"grad_norm\": 1.5, \"step\": 2}]}");
  const RunRecord run = read();
  EXPECT_TRUE(std::isnan(run.series.at("loss").at(1)));
  EXPECT_TRUE(std::isnan(run.series.at("loss").at(2)));
  EXPECT_TRUE(std::isnan(run.series.at("grad_norm").at(1)));
  EXPECT_EQ(run.series.at("grad_norm").at(2), 1.5);
  put("metrics.jsonl", "{\"loss\": NaN, \"step\": 0}\n{\"loss\": 2, \"step\": 1}\n");
  EXPECT_EQ(read().series.at("loss").at(1), 2);
}

TEST_F(RunRecords, ARunThatWentOnFromACheckpointReplacesTheStepsBehindIt) {
  put("metrics.jsonl",
      "{\"loss\": 3, \"step\": 1}\n{\"loss\": 2, \"step\": 2}\n{\"eval_loss\": 9, \"step\": 3}\n{\"loss\": 1, "
      "\"step\": 3}\n"
      "{\"loss\": 2.5, \"step\": 2}\n");
  const RunRecord run = read();
  const Series expected = {{1, 3}, {2, 2.5}};
  EXPECT_EQ(run.series.at("loss"), expected);
  EXPECT_FALSE(run.series.contains("eval_loss"));
  EXPECT_EQ(run.last_step, 2);
}

TEST_F(RunRecords, TheHistoryOfACheckpointFillsInWhatTheMetricsLack) {
  put("metrics.jsonl", "{\"loss\": 2, \"step\": 3}\n{\"loss\": 1.5, \"step\": 4}\n");
  put("checkpoint-2/trainer_state.json", "{\"max_steps\": 9, \"log_history\": [{\"loss\": 7, \"step\": 1}]}");
  put("checkpoint-12/trainer_state.json",
      "{\"max_steps\": 8, \"log_history\": [{\"loss\": 4, \"step\": 1}, {\"loss\": 3, \"step\": 2}, {\"loss\": 99, "
      "\"step\": 3}]}");
  const RunRecord run = read();
  const Series expected = {{1, 4}, {2, 3}, {3, 2}, {4, 1.5}};
  EXPECT_EQ(run.series.at("loss"), expected);
  EXPECT_EQ(run.max_steps, 8);
}

TEST_F(RunRecords, AFolderOfTransformersTrainerIsReadFromItsState) {
  put("trainer_state.json",
      "{\"max_steps\": 2, \"log_history\": [{\"loss\": 4.0, \"grad_norm\": 1.0, \"learning_rate\": 5e-05, \"epoch\": "
      "0.5, \"step\": 1},"
      "{\"eval_loss\": 3.5, \"eval_runtime\": 2.0, \"epoch\": 1.0, \"step\": 2},"
      "{\"train_runtime\": 10.0, \"train_loss\": 3.75, \"epoch\": 1.0, \"step\": 2}]}");
  const RunRecord run = read();
  EXPECT_EQ(run.series.at("learning_rate").at(1), 5e-05);
  EXPECT_EQ(run.summary.at("train_runtime"), 10);
  const NamedNumbers phases = {{"training", 8}, {"evaluation", 2}};
  EXPECT_EQ(run.phase_seconds, phases);
}

TEST_F(RunRecords, SettingsAndPlanComeFromRunJsonAndMeasurementsFromTheLastRow) {
  put("elsewhere/rows.jsonl",
      "{\"loss\": 2, \"step\": 1}\n{\"train_runtime\": 9, \"planned_memory_mib\": 150, \"measured_memory_mib\": 140,"
      " \"measured_device_mib\": 70, \"planned_device_mib\": 75, \"measured_own_mib\": 100, \"measured_files_mib\": "
      "30, \"measured_shared_mib\": 10, "
      "\"forward_and_backward_seconds\": 6,"
      " \"update_seconds\": 2, \"evaluation_seconds\": 0.5, \"saving_seconds\": 0.5, \"step\": 1}\n");
  put("run.json",
      "{\"command\": \"tessera sft\", \"flags\": {\"learning_rate\": \"0.001\"}, \"launch\": {\"num_processes\": 2},"
      " \"planned_memory_mib\": {\"frozen weights\": 50, \"the program\": 100}, \"planned_device_mib\": {\"cuBLAS\": "
      "64}, \"preparation_seconds\": 1.5,"
      " \"max_steps\": 1, \"metrics_file\": \"" +
          folder_.path() + "/elsewhere/rows.jsonl\"}");
  const RunRecord run = read();
  const NamedNumbers planned = {{"frozen weights", 50}, {"the program", 100}};
  const NamedNumbers measured = {{"own memory", 100}, {"shared between ranks", 10}, {"mapped files", 30}};
  const NamedNumbers phases = {
      {"preparation", 1.5}, {"forward and backward", 6}, {"update", 2}, {"evaluation", 0.5}, {"saving", 0.5}};
  EXPECT_EQ(run.planned_mib, planned);
  EXPECT_EQ(run.measured_mib, measured);
  EXPECT_EQ(run.planned_device_mib, (NamedNumbers{{"cuBLAS", 64}})) << "part by part, not the sum of the last row";
  EXPECT_EQ(run.measured_device_mib, (NamedNumbers{{"all", 70}}));
  EXPECT_EQ(run.phase_seconds, phases);
  const std::vector<std::pair<std::string, std::string>> configuration = {
      {"command", "tessera sft"}, {"learning_rate", "0.001"}, {"num_processes", "2"}};
  EXPECT_EQ(run.configuration, configuration);
}

TEST_F(RunRecords, ALastLineThatIsHalfWrittenIsLeftOutAndAnyOtherIsNamed) {
  put("metrics.jsonl", "{\"loss\": 3, \"step\": 1}\n{\"loss\": 2, \"st");
  EXPECT_EQ(read().series.at("loss").size(), 1u);
  put("metrics.jsonl", "{\"loss\": 3, \"st\n{\"loss\": 2, \"step\": 2}\n");
  try {
    read();
    FAIL() << "a broken line in the middle was read";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("metrics.jsonl', line 1"), std::string::npos) << e.what();
  }
}

TEST_F(RunRecords, AFolderWithoutARunIsRefusedByName) {
  const auto message = [](const std::string& folder) -> std::string {
    try {
      read_run(folder, "run");
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message(folder_.path()).find("holds no metrics.jsonl and no trainer_state.json"), std::string::npos);
  EXPECT_NE(message(folder_.path() + "/none").find("is not a folder"), std::string::npos);
  put("trainer_state.json", "[]");
  EXPECT_NE(message(folder_.path()).find("trainer_state.json' is not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace tessera::report
