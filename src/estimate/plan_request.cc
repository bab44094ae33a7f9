#include "estimate/plan_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/dotted_name.h"
#include "base/low_rank_optimizer.h"
#include "estimate/adapter_formulas.h"
#include "estimate/layer_places.h"
#include "estimate/optimizer_state.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

constexpr const char* kTrainableTokens = "TRAINABLE_TOKENS";

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

bool sees_low_rank(const PlanRequest& request, const ModelTensor& t) {
  return is_linear_layer(t) && is_low_rank_target(request.optim_target_modules, module_of(t.name));
}

AdaptedLayer adapted_layer(const AdapterRequest& adapter, const ModelTensor& t) {
  const auto [in, out] = sides_of(t);
  return {in, out, has_suffix(module_of(t.name), adapter.feedforward_modules)};
}

/// The parameters that a method adds to a matrix.
void add_adapter(const PlanRequest& request, const ModelTensor& t, std::vector<SizedParameter>& out) {
  const auto& a = *request.adapter;
  const Trained trained{request};
  const auto layer = adapted_layer(a, t);
  if (a.peft_type == "LORA") {
    out.push_back(trained(t.name + ".lora_A", {a.lora_r, layer.in}, true));
    out.push_back(trained(t.name + ".lora_B", {layer.out, a.lora_r}, true));
    return;
  }
  const auto numel = layer_adapter_numel(a.peft_type, parse_peft_args(a.peft_args), layer);
  auto& added = out.emplace_back(trained(t.name + ".adapter", {numel}, true));
  if (a.peft_type == "ADALORA") added.state_bytes += rank_allocation_bytes(numel);
}

/// The vectors of a norm.
bool is_norm(const ModelTensor& t) {
  const auto module = last_part(module_of(t.name));
  return t.shape.size() == 1 && (module.find("norm") != std::string::npos || module.starts_with("ln_") ||
                                 module.find("Norm") != std::string::npos);
}

/// Rows of all matrices that make keys and values of a decoder.
std::int64_t key_and_value_rows(const std::vector<ModelTensor>& tensors) {
  std::int64_t rows = 0;
  for (const auto& t : tensors) {
    if (!is_linear(t) || t.name.starts_with("encoder.") || t.name.find("EncDecAttention") != std::string::npos)
      continue;
    if (has_suffix(module_of(t.name), std::vector<std::string>{"k_proj", "v_proj", "k", "v"})) rows += t.shape[0];
    if (has_suffix(module_of(t.name), "c_attn")) rows += 2 * t.shape[1] / 3;
  }
  return rows;
}

/// Prompt tuning: rows of the word embedding's length; an encoder-decoder model stores them for both parts. P-tuning:
/// an MLP besides. Prefix tuning: keys and values of every layer.
SizedParameter prompt(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  const auto& a = *request.adapter;
  if (a.peft_type == "PREFIX_TUNING") {
    return Trained{request}("prompt_encoder.default.weight", {a.num_virtual_tokens, key_and_value_rows(tensors)}, true);
  }
  std::int64_t dim = 0, parts = 1;
  for (const auto& t : tensors) {
    if (dim == 0 && t.shape.size() == 2 && unit_of(t.name).empty()) dim = t.shape[1];
    if (t.name.starts_with("decoder.block")) parts = 2;
  }
  auto numel = parts * a.num_virtual_tokens * dim;
  if (a.peft_type == "P_TUNING") numel += p_tuning_mlp_numel(parse_peft_args(a.peft_args), dim);
  return Trained{request}("prompt_encoder.default.weight", {numel}, true);
}

/// Trainable tokens: their rows of the table of tokens, or of each matrix outside of blocks that is named (a head that
/// is tied has the table's).
std::vector<SizedParameter> token_rows(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  const auto& a = *request.adapter;
  const auto tokens = token_count(parse_peft_args(a.peft_args));
  const bool named = a.target_modules != std::vector<std::string>{"all-linear"};
  std::vector<SizedParameter> out;
  for (const auto& t : tensors) {
    if (t.shape.size() != 2 || !unit_of(t.name).empty()) continue;
    const auto module = module_of(t.name);
    const bool is_wanted = named ? has_suffix(module, a.target_modules) : out.empty() && !is_head(module);
    if (is_wanted) out.push_back(Trained{request}(module + ".trainable_tokens_delta", {tokens, t.shape[1]}, true));
  }
  require_option(!out.empty(),
                 fmt::format("--target_modules {}: no table of tokens and no head has such a name",
                             fmt::join(a.target_modules, ",")),
                 "target_modules");
  return out;
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

bool AdapterRequest::has_virtual_tokens() const {
  return peft_type == "PROMPT_TUNING" || peft_type == "P_TUNING" || peft_type == "PREFIX_TUNING";
}

bool AdapterRequest::in_layers() const {
  return !has_virtual_tokens() && peft_type != "LN_TUNING" && peft_type != kTrainableTokens;
}

std::vector<std::string> counted_methods() {
  auto types = layer_methods();
  types.insert(types.end(), {"LN_TUNING", "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", kTrainableTokens});
  return types;
}

bool PlanRequest::possible(const std::vector<ModelTensor>& tensors) const {
  const bool is_packed =
      packed || std::any_of(tensors.begin(), tensors.end(), [](const ModelTensor& t) { return t.packed_bytes > 0; });
  return adapter || !is_packed;
}

namespace {

/// The layers as the adapter stacks them.
std::vector<ModelTensor> stacked(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  if (!request.adapter || request.adapter->peft_type != "LORA") return tensors;
  return at_places(tensors, parse_peft_args(request.adapter->peft_args)["layer_replication"]);
}

}  // namespace

std::vector<SizedParameter> parameters_of(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  std::vector<SizedParameter> out;
  const char* compute = compute_dtype(request.mixed_precision);
  if (!request.adapter) {
    const bool is_low_rank = is_low_rank_optimizer(request.optim);
    const auto low = is_low_rank ? parse_low_rank(request.optim_args) : LowRankShape();
    for (const auto& t : tensors) {
      auto& sized = out.emplace_back(Trained{request}(t.name, t.shape, t.dtype == compute));
      if (is_low_rank && sees_low_rank(request, t)) count_low_rank(sized, request.optim, low, t.shape);
    }
    return out;
  }
  const auto& targets = request.adapter->target_modules;
  const auto& adapter = *request.adapter;
  const bool in_layers = adapter.in_layers(), norms = adapter.peft_type == "LN_TUNING";
  std::set<std::string> known;
  bool any = !in_layers || targets == std::vector<std::string>{"all-linear"};
  for (const auto& t : tensors) {
    out.push_back(frozen(request, t));
    if (is_linear(t)) known.insert(last_part(module_of(t.name)));
    if (norms && is_norm(t)) out.push_back(Trained{request}(t.name + ".trained", t.shape, true));
  }
  std::vector<AdaptedLayer> layers;
  for (const auto& t : stacked(request, tensors)) {
    if (!in_layers || !is_target(t, targets)) continue;
    any = true;
    layers.push_back(adapted_layer(adapter, t));
    add_adapter(request, t, out);
  }
  require_option(any,
                 fmt::format("--lora_target_modules {}: no matrix of a block has such a name; there are {}",
                             fmt::join(targets, ","), fmt::join(known, ", ")),
                 "lora_target_modules");
  if (adapter.has_virtual_tokens()) out.push_back(prompt(request, tensors));
  if (adapter.peft_type == kTrainableTokens)
    for (auto& rows : token_rows(request, tensors)) out.push_back(std::move(rows));
  const auto shared = shared_adapter_numel(adapter.peft_type, parse_peft_args(adapter.peft_args), layers);
  if (shared.trainable > 0) out.push_back(Trained{request}("shared.adapter", {shared.trainable}, true));
  if (shared.frozen > 0)
    out.push_back({.name = "shared.base", .numel = shared.frozen, .trainable = false, .stored_as_computed = false});
  return out;
}

namespace {

/// A prompt's tokens stand in front of every row.
BatchShape batch_of(const PlanRequest& request) {
  auto batch = request.batch;
  if (request.adapter)
    batch.put_in_front(tokens_in_front(request.adapter->peft_type, request.adapter->num_virtual_tokens));
  return batch;
}

OfAdapter of_adapter(const AdapterRequest& adapter, const BatchShape& batch, std::int64_t element_bytes) {
  auto args = parse_peft_args(adapter.peft_args);
  if (adapter.peft_type == "LORA") args["r"] = std::to_string(adapter.lora_r);
  return [adapter, args, batch, element_bytes](const ModelTensor& t) {
    if (!adapter.in_layers() || !is_target(t, adapter.target_modules)) return AdapterBytes{};
    return layer_adapter_bytes(adapter.peft_type, args, adapted_layer(adapter, t), {batch.tokens_of(t), element_bytes});
  };
}

/// Of a rank's or a device's job.
template <typename Job>
void add_stacks(Job& job, const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  job.activations = activation_shape(tensors);
  job.encoder = encoder_shape(tensors);
  if (!request.adapter) return;
  const auto adapter = of_adapter(*request.adapter, job.batch, job.low_precision ? 2 : 4);
  job.adapters = adapter_activations(tensors, adapter);
  job.encoder_adapters = encoder_adapter_activations(tensors, adapter);
}

RankPlan plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors, bool for_device) {
  RankJob job{.strategy = request.strategy,
              .ranks = std::max(1, request.ranks / request.hosts),
              .low_precision = request.mixed_precision != "no",
              .whole_masters = request.mixed_precision == "fp16",
              .on_disk = request.on_disk,
              .for_device = for_device,
              .hosts = request.hosts,
              .batch = batch_of(request)};
  add_stacks(job, request, stacked(request, tensors));
  auto plan = plan_rank(sizes_of(parameters_of(request, tensors)), job);
  plan.program = program_bytes(job.ranks, /*forked=*/!for_device);
  return plan;
}

}  // namespace

RankPlan plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  return plan_for(request, tensors, /*for_device=*/false);
}

namespace {

DeviceJob device_job(const PlanRequest& request, const std::vector<ModelTensor>& tensors,
                     const std::vector<SizedParameter>& parameters) {
  const auto placed = stacked(request, tensors);
  DeviceJob job{.strategy = request.strategy,
                .ranks = std::max(1, request.ranks / request.hosts),
                .hosts = request.hosts,
                .low_precision = request.mixed_precision != "no",
                .state_on_host = request.offload_params,
                .optimizer_on_host = computes_on_host(request.optim),
                .shape = device_shape(placed),
                .batch = batch_of(request)};
  job.head_trains = head_trains(job.shape, parameters);
  add_stacks(job, request, placed);
  return job;
}

}  // namespace

RankPlan device_plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  const auto parameters = parameters_of(request, tensors);
  return plan_device(sizes_of(parameters), device_job(request, tensors, parameters));
}

RankPlan host_plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors) {
  if (request.offload_params) {
    auto without = request;
    without.batch.length = 0;  // activations are on the GPU
    return plan_for(without, tensors, /*for_device=*/true);
  }
  std::int64_t largest = 0;
  for (const auto& t : tensors) largest = std::max(largest, t.numel());
  const auto parameters = parameters_of(request, tensors);
  const auto job = device_job(request, tensors, parameters);
  auto plan = host_beside_device(sizes_of(parameters), job, largest);
  plan.program = program_bytes(job.ranks, /*forked=*/false);
  return plan;
}

}  // namespace tessera::estimate
