#pragma once
// The tasks of GLUE (Wang et al. 2018) as transformers' run_glue.py knows them.
#include <string>
#include <vector>

#include "tasks/classify_metrics.h"

namespace tessera::tasks {

struct GlueTask {
  std::string name;
  std::string first, second;        // columns of the texts; second is empty where there is one
  std::vector<std::string> labels;  // the class of each number in the data; empty: the label is a number itself
  ClassMeasures measures;
};

/// Null: none has this name.
const GlueTask* find_glue_task(const std::string& name);
std::vector<std::string> glue_task_names();

}  // namespace tessera::tasks
