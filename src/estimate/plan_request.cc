#include "estimate/plan_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "estimate/optimizer_state.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

bool has_suffix(const std::string& module, const std::vector<std::string>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](const std::string& suffix) { return module == suffix || module.ends_with("." + suffix); });
}

bool is_target(const ModelTensor& t, const std::vector<std::string>& targets) {
  if (!is_linear(t)) return false;
  const std::string module = module_of(t.name);
  return has_suffix(module, targets) || std::find(targets.begin(), targets.end(), "all-linear") != targets.end();
}

struct Trained {
  const PlanRequest& request;
  SizedParameter operator()(const std::string& name, const std::vector<std::int64_t>& shape, bool as_computed) const {
    std::int64_t numel = 1;
    for (const auto size : shape) numel *= size;
    return {.name = name,
            .numel = numel,
            .trainable = true,
            .stored_as_computed = as_computed,
            .state_bytes = optimizer_state_bytes(request.optim, name, shape)};
  }
};

/// The parameters that a method adds to a matrix [out, in].
void add_adapter(const PlanRequest& request, const ModelTensor& t, std::vector<SizedParameter>& out) {
  const auto& a = *request.adapter;
  const Trained trained{request};
  if (a.peft_type == "LORA") {
    out.push_back(trained(t.name + ".lora_A", {a.lora_r, t.shape[1]}, true));
    out.push_back(trained(t.name + ".lora_B", {t.shape[0], a.lora_r}, true));
  } else if (a.peft_type == "IA3") {
    const bool scales_inputs = has_suffix(module_of(t.name), a.feedforward_modules);
    out.push_back(trained(t.name + ".ia3", {t.shape[scales_inputs ? 1 : 0]}, true));
  }
}

/// Prompt tuning: rows of the word embedding's length; an encoder-decoder model stores them for both parts.
SizedParameter prompt(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  std::int64_t dim = 0, parts = 1;
  for (const auto& t : tensors) {
    if (dim == 0 && t.shape.size() == 2 && unit_of(t.name).empty()) dim = t.shape[1];
    if (t.name.starts_with("decoder.block")) parts = 2;
  }
  return Trained{request}("prompt_encoder.default.weight", {parts * request.adapter->num_virtual_tokens, dim}, true);
}

const char* compute_dtype(const std::string& mixed_precision) {
  return mixed_precision == "no" ? "F32" : mixed_precision == "fp16" ? "F16" : "BF16";
}

SizedParameter frozen(const PlanRequest& request, const ModelTensor& t) {
  SizedParameter out{.name = t.name, .numel = t.numel(), .trainable = false};
  out.stored_as_computed = t.dtype == compute_dtype(request.mixed_precision) || t.packed_bytes > 0;
  out.packed_bytes = t.packed_bytes;
  if (request.packed && t.packed_bytes == 0 && is_linear(t)) {
    out.packed_bytes = packed_bytes(*request.packed, t.shape[0], t.shape[1]);
    out.stored_as_computed = false;
  }
  return out;
}

}  // namespace

bool PlanRequest::possible(const std::vector<ModelTensor>& tensors) const {
  const bool is_packed =
      packed || std::any_of(tensors.begin(), tensors.end(), [](const ModelTensor& t) { return t.packed_bytes > 0; });
  return adapter || !is_packed;
}

std::vector<SizedParameter> parameters_of(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  std::vector<SizedParameter> out;
  const char* compute = compute_dtype(request.mixed_precision);
  if (!request.adapter) {
    for (const auto& t : tensors) out.push_back(Trained{request}(t.name, t.shape, t.dtype == compute));
    return out;
  }
  const auto& targets = request.adapter->target_modules;
  const bool in_layers = request.adapter->peft_type != "PROMPT_TUNING";
  std::set<std::string> known;
  bool any = !in_layers || targets == std::vector<std::string>{"all-linear"};
  for (const auto& t : tensors) {
    out.push_back(frozen(request, t));
    if (is_linear(t)) known.insert(last_part(module_of(t.name)));
    if (!in_layers || !is_target(t, targets)) continue;
    any = true;
    add_adapter(request, t, out);
  }
  require_option(any,
                 fmt::format("--lora_target_modules {}: no matrix of a block has such a name; there are {}",
                             fmt::join(targets, ","), fmt::join(known, ", ")),
                 "lora_target_modules");
  if (!in_layers) out.push_back(prompt(request, tensors));
  return out;
}

RankPlan plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  return plan_rank(sizes_of(parameters_of(request, tensors)), {.strategy = request.strategy,
                                                               .ranks = std::max(1, request.ranks / request.hosts),
                                                               .low_precision = request.mixed_precision != "no",
                                                               .whole_masters = request.mixed_precision == "fp16",
                                                               .on_disk = request.on_disk,
                                                               .hosts = request.hosts,
                                                               .activations = activation_shape(tensors),
                                                               .batch = request.batch});
}

}  // namespace tessera::estimate
