#include "peft/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "base/grouped.h"
#include "base/nearest.h"
#include "peft/slots.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

void check_supported(const LoraConfig& c) {
  const auto refuse = [](const std::string& key, const std::string& why) {
    throw ConfigError("LoRA option '" + key + "' " + why, key);
  };
  if (c.r <= 0) refuse("r", "must be positive, found " + std::to_string(c.r));
  if (c.lora_dropout < 0 || c.lora_dropout > 1) refuse("lora_dropout", "must be in [0, 1]");
  if (c.bias != "none" && c.bias != "all" && c.bias != "lora_only") refuse("bias", "is one of none, all, lora_only");
  if (c.init_lora_weights != "true" && c.init_lora_weights != "false" && c.init_lora_weights != "gaussian") {
    refuse("init_lora_weights", "is one of true, false, gaussian; found '" + c.init_lora_weights +
                                    "' (initialisations that change the base weights are not supported)");
  }
  if (!c.target_regex.empty() && !c.layers_to_transform.empty())
    refuse("layers_to_transform", "goes with a list of target_modules, not with a regular expression or all-linear");
  if (!c.layers_pattern.empty() && c.layers_to_transform.empty()) refuse("layers_pattern", "needs layers_to_transform");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

[[noreturn]] void refuse_targets(const std::vector<Slot>& all, const LoraConfig& config) {
  std::vector<std::string> leaves;
  for (const auto& slot : all) {
    const auto leaf = slot.name.substr(slot.name.rfind('.') + 1);
    if (std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) leaves.push_back(leaf);
  }
  const auto wanted = config.target_regex.empty() ? joined(config.target_modules) : config.target_regex;
  throw ConfigError("target_modules: '" + wanted + "' matches no module that takes an adapter; this model has " +
                        joined(leaves) +
                        (config.target_modules.empty() ? "" : did_you_mean(config.target_modules[0], leaves)),
                    "target_modules");
}

// all-linear: every Linear but the output head, and not the embeddings.
bool is_plain_linear(const Slot& slot, const models::ModelConfig& family, const LoraConfig& config) {
  if (!slot.linear || slot.name == family.output_embedding) return false;
  const bool classifier = slot.name == "score" || slot.name == "classifier";
  return !(classifier && config.task_type == "SEQ_CLS");
}

// Each matched module, or an error that helps to name the right ones.
std::vector<Slot> chosen(const nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& config) {
  const auto all = slots(model);
  auto every_linear = config;
  every_linear.target_modules.clear();
  every_linear.target_regex = ".*";
  std::vector<Slot> out;
  for (const auto& slot : all) {
    const bool match = wants_all_linear(config)
                           ? is_plain_linear(slot, family, config) && is_target(slot.name, every_linear)
                           : is_target(slot.name, config);
    if (match) out.push_back(slot);
  }
  if (out.empty()) refuse_targets(all, config);
  return out;
}

// Uniform with the bound of torch.nn.Linear: Kaiming's with a = sqrt(5).
void fill_like_linear(const at::Tensor& w, tensor::RandomKey key) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(w.size(1)));
  tensor::fill_uniform(w, key, -bound, bound);
}

using Draw = std::function<void(const at::Tensor&, tensor::RandomKey)>;

Draw draw_a(const Slot& slot, const std::string& how) {
  const auto rank = static_cast<double>(slot.a().size(0));
  if (how == "gaussian" && slot.linear) {
    return [rank](const at::Tensor& a, tensor::RandomKey key) { tensor::fill_normal(a, key, 0.0, 1.0 / rank); };
  }
  if (slot.linear) return fill_like_linear;
  if (how == "false") return [](const at::Tensor& a, tensor::RandomKey key) { tensor::fill_normal(a, key, 0.0, 1.0); };
  return [](const at::Tensor& a, tensor::RandomKey) { a.zero_(); };
}

Draw draw_b(const Slot& slot, const std::string& how) {
  if (slot.embedding) return [](const at::Tensor& b, tensor::RandomKey key) { tensor::fill_normal(b, key, 0.0, 1.0); };
  if (how == "false") return fill_like_linear;
  return [](const at::Tensor& b, tensor::RandomKey) { b.zero_(); };
}

void attach(const Slot& slot, const LoraConfig& config) {
  const auto rank = rank_of(slot.name, config);
  if (rank <= 0) {
    throw ConfigError("rank_pattern: the rank of '" + slot.name + "' must be positive, found " + std::to_string(rank),
                      "rank_pattern");
  }
  const nn::AdapterShape shape{.rank = rank,
                               .scaling = config.scaling(rank, alpha_of(slot.name, config)),
                               .dropout = config.lora_dropout,
                               .magnitude = config.use_dora};
  if (slot.linear) slot.linear->attach_adapter(shape);
  if (slot.embedding) slot.embedding->attach_adapter(shape);
}

// Modules that train in place; nested ones are part of the first.
std::vector<std::string> modules_to_save(const nn::HookedModule& model, const LoraConfig& config) {
  std::vector<std::string> found, missing;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const bool inside = !found.empty() && item.key().starts_with(found.back() + ".");
    if (!inside && !is_adapter_parameter(item.key()) && is_saved(item.key(), config)) found.push_back(item.key());
  }
  for (const auto& key : config.modules_to_save) {
    const bool optional = config.task_type == "SEQ_CLS" && (key == "classifier" || key == "score");
    if (!optional && std::none_of(found.begin(), found.end(), [&](const auto& name) { return name.ends_with(key); }))
      missing.push_back(key);
  }
  if (!missing.empty()) {
    throw ConfigError("modules_to_save: no module's name ends with '" + missing[0] +
                          "' (a head that is tied to the embedding is no module of its own)",
                      "modules_to_save");
  }
  return found;
}

LoraConfig resolved(LoraConfig config, const models::ModelConfig& family) {
  config = with_default_targets(std::move(config), family);
  if (config.task_type.empty()) config.task_type = family.task_type;
  if (config.task_type != "SEQ_CLS") return config;
  for (const char* head : {"classifier", "score"}) {  // PEFT always trains the head of a classifier
    auto& saved = config.modules_to_save;
    if (std::find(saved.begin(), saved.end(), head) == saved.end()) saved.emplace_back(head);
  }
  return config;
}

// A tied head trains apart from the embedding when it, or the embedding alone, is to be saved.
bool untie_if_needed(nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& config) {
  auto* whole = dynamic_cast<models::Model*>(&model);
  bool wanted = is_saved(family.output_embedding, config) ||
                (config.target_regex.empty() && is_target(family.output_embedding, config));
  for (const auto& slot : slots(model)) {
    const bool table = slot.embedding && slot.weight().size(0) == family.vocab_size;
    wanted = wanted || (table && is_saved(slot.name, config));
  }
  return wanted && whole && whole->untie_head();
}

// PEFT has no parameter for the tied head of the base model, only for its trained copy.
void count(const nn::HookedModule& model, const std::string& untied, LoraReport& report) {
  for (const auto& item : model.named_parameters()) {
    const auto numel = item.value().numel();
    const std::int64_t copies =
        (is_saved(item.key(), report.config) ? 1 : 0) + (item.key() == untied + ".weight" ? 0 : 1);
    report.total += copies * numel;
    if (item.value().requires_grad()) report.trainable += numel;
  }
}

}  // namespace

double LoraConfig::scaling(std::int64_t rank, double alpha) const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

std::string LoraReport::trainable_line() const {
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}", grouped(trainable), grouped(total),
                     total == 0 ? 0.0 : 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
}

LoraReport apply_lora(nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& given) {
  check_supported(given);
  LoraReport report;
  auto& config = report.config;
  config = resolved(given, family);
  config.fan_in_fan_out = false;  // known from the modules
  report.untied = untie_if_needed(model, family, config);
  const auto targets = chosen(model, family, config);
  for (auto& p : model.parameters()) p.set_requires_grad(false);
  for (const auto& slot : targets) {
    attach(slot, config);
    if (config.bias == "lora_only" && slot.bias().defined()) slot.bias().set_requires_grad(true);
    config.fan_in_fan_out = config.fan_in_fan_out || (slot.linear && slot.transposed());
    report.adapted.push_back(slot.name);
  }
  report.saved = modules_to_save(model, config);
  for (auto& item : model.named_parameters()) {
    const bool bias = config.bias == "all" && has_suffix(item.key(), "bias");
    if (bias || (is_saved(item.key(), config) && !is_adapter_parameter(item.key())))
      item.value().set_requires_grad(true);
  }
  if (wants_all_linear(config)) {  // written as the list of what was found, as PEFT does
    config.target_regex.clear();
    config.target_modules = report.adapted;
  }
  count(model, report.untied ? family.output_embedding : "", report);
  return report;
}

std::function<void(const std::string&, const at::Tensor&)> adapter_init(const nn::HookedModule& model,
                                                                        const LoraConfig& config, std::uint64_t seed) {
  std::map<std::string, std::function<void(const at::Tensor&)>> draws;
  for (const auto& slot : adapted_slots(model)) {
    const auto keyed = [seed](Draw draw, const std::string& name) {
      return [draw = std::move(draw), key = tensor::named_key(seed, name)](const at::Tensor& t) { draw(t, key); };
    };
    draws[slot.name_of_a()] = keyed(draw_a(slot, config.init_lora_weights), slot.name + ".lora_A");
    draws[slot.name_of_b()] = keyed(draw_b(slot, config.init_lora_weights), slot.name + ".lora_B");
    draws[slot.name_of_magnitude()] = [](const at::Tensor& t) { t.fill_(1); };  // until the weights are there
  }
  return [draws = std::move(draws)](const std::string& name, const at::Tensor& parameter) {
    const auto draw = draws.find(name);
    if (draw == draws.end()) return;
    const auto values = parameter.detach();
    nn::allocate(values);
    draw->second(values);
  };
}

}  // namespace tessera::peft
