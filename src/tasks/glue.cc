#include "tasks/glue.h"

#include <algorithm>

namespace tessera::tasks {
namespace {

/// The columns are run_glue.py's task_to_keys, the labels those of nyu-mll/glue, the measures those of evaluate's glue.
const std::vector<GlueTask>& glue_tasks() {
  static const std::vector<GlueTask> tasks = {
      {"cola", "sentence", "", {"unacceptable", "acceptable"}, ClassMeasures::kMatthews},
      {"mnli", "premise", "hypothesis", {"entailment", "neutral", "contradiction"}, ClassMeasures::kAccuracy},
      {"mrpc", "sentence1", "sentence2", {"not_equivalent", "equivalent"}, ClassMeasures::kAccuracyAndF1},
      {"qnli", "question", "sentence", {"entailment", "not_entailment"}, ClassMeasures::kAccuracy},
      {"qqp", "question1", "question2", {"not_duplicate", "duplicate"}, ClassMeasures::kAccuracyAndF1},
      {"rte", "sentence1", "sentence2", {"entailment", "not_entailment"}, ClassMeasures::kAccuracy},
      {"sst2", "sentence", "", {"negative", "positive"}, ClassMeasures::kAccuracy},
      {"stsb", "sentence1", "sentence2", {}, ClassMeasures::kCorrelations},
      {"wnli", "sentence1", "sentence2", {"not_entailment", "entailment"}, ClassMeasures::kAccuracy}};
  return tasks;
}

}  // namespace

const GlueTask* find_glue_task(const std::string& name) {
  const auto& tasks = glue_tasks();
  const auto found = std::find_if(tasks.begin(), tasks.end(), [&](const GlueTask& task) { return task.name == name; });
  return found == tasks.end() ? nullptr : &*found;
}

std::vector<std::string> glue_task_names() {
  std::vector<std::string> names;
  for (const auto& task : glue_tasks()) names.push_back(task.name);
  return names;
}

}  // namespace tessera::tasks
