#include "peft/apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/grouped.h"
#include "models/names_in_files.h"
#include "peft/merge.h"
#include "peft/methods/word_embedding.h"
#include "peft/targets.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"
#include "tessera/nn/packed_weight.h"

namespace tessera::peft {
namespace {

// Modules that train in place. PEFT copies a module that lies in another one, too, but computes with that one's.
std::vector<std::string> modules_to_save(const nn::HookedModule& model, const PeftConfig& config,
                                         const std::set<std::string>& adapters) {
  const auto is_adapters = [&](const std::string& module) {
    const auto next = adapters.lower_bound(module + ".");
    return next != adapters.end() && next->starts_with(module + ".");
  };
  const auto is_named = [&](const std::string& module) {
    return std::any_of(config.modules_to_save.begin(), config.modules_to_save.end(),
                       [&](const std::string& key) { return module.ends_with(key); });
  };
  std::vector<std::string> found, missing;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (is_adapters(item.key()) || !is_saved(item.key(), config)) continue;
    if (found.empty() || !item.key().starts_with(found.back() + ".")) {
      found.push_back(item.key());
    } else if (is_named(item.key())) {
      throw ConfigError("modules_to_save names '" + item.key() + "' and '" + found.back() +
                            "', which it is a part of; name one of them (PEFT trains and saves a copy of the part, but "
                            "does not compute with it)",
                        "modules_to_save");
    }
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

std::shared_ptr<PeftMethod> resolved(const PeftMethod& given, const models::ModelConfig& family) {
  std::shared_ptr<PeftMethod> method = given.clone();
  method->resolve(family);
  if (method->task_type != "SEQ_CLS" || !method->has_modules_to_save()) return method;
  for (const char* head : {"classifier", "score"}) {  // PEFT always trains the head of a classifier
    auto& saved = method->modules_to_save;
    if (std::find(saved.begin(), saved.end(), head) == saved.end()) saved.emplace_back(head);
  }
  return method;
}

/// PEFT's BaseTuner._check_tied_modules, which knows these names alone: with ensure_weight_tying a head that shares the
/// table's weight is trained with it, as the table. True: the model has such a head and it stays so.
bool keep_tied(const models::Model& model, const models::ModelConfig& family, PeftConfig& config) {
  const auto tied = tied_to_words(model, family);
  const bool has_tied_head = std::find(tied.begin(), tied.end(), family.output_embedding) != tied.end();
  if (!config.ensure_weight_tying || !has_tied_head) return false;
  const auto names_it = [](const std::vector<std::string>& modules) {
    return std::any_of(modules.begin(), modules.end(), [](const std::string& module) {
      return has_suffix(module, "embed_tokens") || has_suffix(module, "lm_head");
    });
  };
  const auto matches_it = [](const std::string& regex) {
    const Pattern pattern(regex, "target_modules");
    return pattern.matches("embed_tokens") || pattern.matches("lm_head");
  };
  const bool targeted =
      names_it(config.target_modules) || (!config.target_regex.empty() && matches_it(config.target_regex));
  if (targeted) {
    throw ConfigError(
        "ensure_weight_tying: adapters of target_modules that stay tied are not built (PEFT trains two of them over "
        "one memory, each with an optimizer state of its own), and the head of this model is tied to its table; name "
        "the table in modules_to_save, leave embed_tokens and lm_head out of target_modules, or set "
        "ensure_weight_tying to false",
        "ensure_weight_tying");
  }
  if (!names_it(config.modules_to_save)) return false;
  if (family.kind != models::ModelKind::kCausal) {
    throw ConfigError(
        "ensure_weight_tying: with modules_to_save PEFT puts a linear layer in the place of each tied module, which "
        "this model's tables of an encoder-decoder are not; leave the table and the head out of modules_to_save, or "
        "set ensure_weight_tying to false",
        "ensure_weight_tying");
  }
  const auto table = word_embedding(model, family.vocab_size).name;
  auto& names = config.modules_to_save;
  std::erase(names, family.output_embedding);
  if (std::find(names.begin(), names.end(), table) == names.end()) names.push_back(table);
  config.kept_embeddings = {table, family.output_embedding};  // PEFT's file has the head's copy, too
  return true;
}

// Where the head's matrix is its own, PEFT trains its bias with it. Here the bias is the head's.
void refuse_matrix_without_bias(const models::Model& model, const PeftMethod& method) {
  const models::NamesInFiles names(model);
  for (const auto& item : model.named_parameters())
    for (const auto& name : names.to_write(item.key()))
      if (is_saved(name, method) && !is_saved(item.key(), method))
        throw ConfigError(
            fmt::format("modules_to_save: '{}' is '{}' here and would not train; name the whole head, '{}'", name,
                        item.key(), item.key().substr(0, item.key().find('.'))),
            "modules_to_save");
}

// A tied head trains apart from the embedding when it, or the embedding alone, is to be saved.
bool untie_if_needed(models::Model& model, const models::ModelConfig& family, const PeftMethod& method) {
  bool wanted = is_saved(family.output_embedding, method);
  bool targeted = is_target(family.output_embedding, method);
  for (const auto& slot : slots(model)) {
    const bool table = slot.embedding && slot.weight().size(0) == family.vocab_size;
    wanted = wanted || (table && is_saved(slot.name, method));
    if (table && method.adapts_tied_together() && is_target(slot.name, method)) targeted = false;
  }
  if (!wanted && !targeted) return false;
  const bool untied = model.untie_head();
  if (family.kind == models::ModelKind::kMaskedLm) refuse_matrix_without_bias(model, method);
  if (untied) return true;
  const auto tied = tied_to_words(model, family);
  if (targeted && std::find(tied.begin(), tied.end(), family.output_embedding) != tied.end()) {
    throw ConfigError("target_modules: '" + family.output_embedding +
                          "' is this model's table of tokens and does not come apart from it, as a decoder's head "
                          "does; leave it out of target_modules or name it in exclude_modules",
                      "target_modules");
  }
  return false;
}

void set_trainable(nn::HookedModule& model, const PeftMethod& config, const std::set<std::string>& adapters) {
  if (config.bias.ends_with("_only")) {
    for (const auto& slot : adapted_slots(model))
      if (slot.bias().defined()) slot.bias().set_requires_grad(true);
  }
  for (auto& item : model.named_parameters()) {
    if (adapters.contains(item.key())) continue;
    const bool bias = config.bias == "all" && has_suffix(item.key(), "bias");
    if (bias || is_saved(item.key(), config) || config.trains(item.key())) item.value().set_requires_grad(true);
  }
}

// PEFT has no parameter for the tied head of the base model, only for its trained copy.
void count(const nn::HookedModule& model, const std::string& untied, AdapterReport& report) {
  const nn::DenseElements elements(model);
  const auto adapters = nn::adapter_parameters(model);
  report.total = report.method->other_parameters();
  for (const auto& item : model.named_parameters()) {
    if (adapters.contains(item.key()) && !item.value().requires_grad()) continue;  // PEFT's buffers
    const auto numel = elements.of(item.key(), item.value());
    const std::int64_t copies = (is_saved(item.key(), *report.method) || report.method->trains(item.key()) ? 1 : 0) +
                                (item.key() == untied + ".weight" ? 0 : 1);
    report.total += copies * numel;
    if (item.value().requires_grad()) report.trainable += numel;
  }
}

}  // namespace

std::string AdapterReport::trainable_line() const {
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}", grouped(trainable), grouped(total),
                     total == 0 ? 0.0 : 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
}

AdapterReport apply_adapter(models::Model& model, const models::ModelConfig& family, const PeftMethod& given) {
  given.check();
  const auto method = resolved(given, family);
  AdapterReport report;
  report.method = method;
  report.untied = !keep_tied(model, family, *method) && untie_if_needed(model, family, *method);
  for (auto& p : model.parameters()) p.set_requires_grad(false);
  if (dynamic_cast<const LayerMethod*>(&given)) report.notes = notes_on_targets(model, given);
  report.adapted = method->attach(model, family);
  const auto adapters = nn::adapter_parameters(model);
  report.saved = modules_to_save(model, *method, adapters);
  set_trainable(model, *method, adapters);
  count(model, report.untied ? family.output_embedding : "", report);
  return report;
}

std::function<void(const std::string&, const at::Tensor&)> adapter_init(const nn::HookedModule& model,
                                                                        const PeftMethod& method, std::uint64_t seed) {
  return [fills = method.first_values(model, seed)](const std::string& name, const at::Tensor& parameter) {
    const auto fill = fills.find(name);
    if (fill == fills.end()) return;
    const auto values = parameter.detach();
    nn::allocate(values);
    fill->second(values);
  };
}

void initialise_from_weights(nn::HookedModule& model, const PeftMethod& method, std::optional<std::uint64_t> seed) {
  const auto parameters = model.named_parameters();
  for (const auto& job : seed ? method.from_weights(model, *seed) : method.from_weights_of_saved(model)) {
    for (const auto& [name, values] : job.values(parameters[job.weight].detach(), adapter_values(model)))
      parameters[name].detach().copy_(values);
  }
}

}  // namespace tessera::peft
