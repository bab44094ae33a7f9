#include "tasks/adapter_classes.h"

#include <nlohmann/json.hpp>

#include "families/classifier.h"
#include "peft/adapter_files.h"

namespace tessera::tasks {

std::optional<checkpoint::ClassifierNames> adapter_classes(const std::string& adapter_folder) {
  const auto count = static_cast<std::size_t>(peft::kept_classes(adapter_folder));
  if (count == 0) return {};
  auto classes = checkpoint::read_classifier_file(adapter_folder).value_or(checkpoint::ClassifierNames{});
  if (classes.labels.size() == count) return classes;
  classes.labels.clear();
  for (std::size_t i = 0; i < count; ++i) classes.labels.push_back("LABEL_" + std::to_string(i));
  return classes;
}

models::ClassifierHead head_for(const checkpoint::ClassifierNames& classes) {
  const nlohmann::json json = {{"num_labels", classes.labels.size()}, {"problem_type", classes.problem_type}};
  auto config = families::parse_classifier(families::ConfigReader(json, checkpoint::kClassifierFile));
  if (config.problem == families::ProblemType::kByLabels && config.num_labels == 1)
    config.problem = families::ProblemType::kRegression;
  return {.config = config, .pad_token_id = classes.pad_token_id};
}

}  // namespace tessera::tasks
