#pragma once
// What folders of preference training have in common: paths of models in texts, arguments of TRL, models.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "preference/objective.h"
#include "tasks/preference_step.h"
#include "verify/verify.h"

namespace tessera::verify {

/// A model of the reference: a folder, or a folder with an adapter.
struct ModelPlace {
  std::string folder, adapter;
};
/// "../policy_llama", "../../B_train/base_llama + ../lora_start", "../lora_start on B_train/base_llama": paths from the
/// folder, the one above it or that one's. DataError names what is missing.
ModelPlace model_place(const std::string& folder, const std::string& text);

tasks::Assembled preference_model(const ModelPlace& place, const VerifyOptions& options,
                                  std::shared_ptr<comm::Communicator> group);

/// Sets an argument from its JSON value; see preference::set_argument().
bool set_argument(preference::Objective& objective, const std::string& name, const nlohmann::json& value);

/// This rank's rows of n: none on some ranks where n is small.
struct Span {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
Span span_of(std::int64_t rows, const comm::Communicator& group);

/// The reference's log-probabilities: another model's, or (null) the policy's with its adapter off.
tasks::ReferenceLogps ask_reference(models::Model* reference, models::Model& policy, const tasks::PreferencePart& part,
                                    const preference::Objective& objective);

/// A scale for losses: smaller ones are differences of larger numbers (hinge, ipo).
constexpr double kSmallLoss = 1e-2;
/// Differences of numbers that may be near 0, by the size of what they were made of.
void add_scaled(Comparison& table, const std::string& name, double actual, double expected, double scale,
                double tolerance);
void add_scaled(Comparison& table, const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                double scale, double tolerance);

}  // namespace tessera::verify
