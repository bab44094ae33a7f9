#include "families/classifier.h"

#include <string>
#include <vector>

namespace tessera::families {
namespace {

ProblemType problem_of(const ConfigReader& in) {
  const auto name = in.get<std::string>("problem_type", "");
  if (name.empty()) return ProblemType::kByLabels;
  if (name == "regression") return ProblemType::kRegression;
  if (name == "single_label_classification") return ProblemType::kSingleLabel;
  if (name == "multi_label_classification") return ProblemType::kMultiLabel;
  throw ConfigError(in.file() + ": problem_type '" + name +
                        "' is none of regression, single_label_classification, multi_label_classification",
                    "problem_type");
}

}  // namespace

bool is_classifier(const ConfigReader& in) {
  const auto names = in.get<std::vector<std::string>>("architectures", {});
  return !names.empty() && names.front().ends_with("ForSequenceClassification");
}

bool is_body_alone(const ConfigReader& in) {
  const auto names = in.get<std::vector<std::string>>("architectures", {});
  return !names.empty() && names.front().ends_with("Model") && !names.front().ends_with("HeadModel") &&
         !names.front().ends_with("HeadsModel");
}

ClassifierConfig parse_classifier(const ConfigReader& in) {
  const bool listed = in.has("id2label") && in.at("id2label").is_object();
  const auto given = in.positive("num_labels", 2);
  return {.num_labels = listed ? static_cast<std::int64_t>(in.at("id2label").size()) : given,
          .problem = problem_of(in)};
}

}  // namespace tessera::families
