#include "verify/preference_folders.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_text.h"
#include "tessera/base/error.h"
#include "tessera/nn/adapter.h"

namespace tessera::verify {
namespace {

std::string without_note(std::string path) {  // "../base (adapter off)"
  if (const auto at = path.find(" ("); at != std::string::npos) path.resize(at);
  return path;
}

std::string found_path(const std::string& folder, const std::string& text) {
  const auto path = without_note(text);
  const std::filesystem::path here = std::filesystem::path(folder).lexically_normal();
  for (const char* above : {"", "..", "../.."}) {
    const auto place = here / above / path;
    if (std::filesystem::is_directory(place)) return place.string();
  }
  throw DataError("'" + folder + "/expect.json' names the model '" + path + "', which is not there", folder);
}

}  // namespace

ModelPlace model_place(const std::string& folder, const std::string& text) {
  if (const auto at = text.find(" + "); at != std::string::npos)
    return {found_path(folder, text.substr(0, at)), found_path(folder, text.substr(at + 3))};
  if (const auto at = text.find(" on "); at != std::string::npos)
    return {found_path(folder, text.substr(at + 4)), found_path(folder, text.substr(0, at))};
  return {found_path(folder, text), ""};
}

tasks::Assembled preference_model(const ModelPlace& place, const VerifyOptions& options,
                                  std::shared_ptr<comm::Communicator> group) {
  auto model = tasks::assemble({.model_folder = place.folder,
                                .adapter_folder = place.adapter,
                                .attn_implementation = kReferenceAttention,
                                .fsdp = options.fsdp},
                               std::move(group));
  model.sharded->set_gradient_divisor(1.0);
  return model;
}

bool set_argument(preference::Objective& objective, const std::string& name, const nlohmann::json& value) {
  const auto text = [](const nlohmann::json& v) {
    return v.is_string() ? v.get<std::string>() : v.is_null() ? "none" : json_text(v);
  };
  if (!value.is_array()) return preference::set_argument(objective, name, text(value));
  std::string list;
  for (const auto& item : value) list += (list.empty() ? "" : ",") + text(item);
  return preference::set_argument(objective, name, list);
}

Span span_of(std::int64_t rows, const comm::Communicator& group) {
  const std::int64_t n = group.size(), r = group.rank();
  return {rows * r / n, rows * (r + 1) / n};
}

tasks::ReferenceLogps ask_reference(models::Model* reference, models::Model& policy, const tasks::PreferencePart& part,
                                    const preference::Objective& objective) {
  if (!objective.needs_reference()) return {};
  std::optional<nn::AdaptersOff> base;
  if (!reference) base.emplace();
  return tasks::logps_of_part(reference ? *reference : policy, part, objective);
}

void add_scaled(Comparison& table, const std::string& name, double actual, double expected, double scale,
                double tolerance) {
  scale = std::max(scale, std::abs(expected));
  table.add(name, scale + (actual - expected), scale, tolerance);
}

void add_scaled(Comparison& table, const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                double scale, double tolerance) {
  if (actual.sizes() != expected.sizes()) return table.add(name, actual, expected, tolerance);  // says the shapes
  const auto e = expected.to(at::kDouble);
  if (e.numel() > 0) scale = std::max(scale, e.abs().max().item<double>());
  table.add(name, (actual.detach().to(at::kDouble) - e) / scale + at::ones_like(e), at::ones_like(e), tolerance);
}

}  // namespace tessera::verify
