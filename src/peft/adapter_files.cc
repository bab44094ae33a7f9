#include "peft/adapter_files.h"

#include <algorithm>
#include <set>

#include "base/open_file.h"
#include "models/names_in_files.h"
#include "peft/slots.h"
#include "peft/targets.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

const std::string kPrefix = "base_model.model.";

std::string leaf(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

std::string without_suffix(const std::string& name, const std::string& suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

/// PEFT keeps the base weights of targets with these names; other families' embeddings it does not.
bool base_is_kept(const std::string& module, const LoraConfig& config) {
  const auto name = leaf(module);
  if (name != "embed_tokens" && name != "lm_head") return false;
  if (!config.target_regex.empty()) return true;
  const auto& targets = config.target_modules;
  return std::any_of(targets.begin(), targets.end(),
                     [](const auto& t) { return t == "embed_tokens" || t == "lm_head"; });
}

std::string adapter_name(const std::string& parameter) {
  auto name = without_suffix(parameter, ".default");  // of an embedding
  const std::string slot = ".default.weight";
  if (!name.ends_with(slot)) return name;
  name.resize(name.size() - slot.size());
  return name.ends_with(".lora_magnitude_vector") ? name : name + ".weight";
}

/// Spellings of a name that readers of PEFT's files accept.
std::vector<std::string> spellings(const AdapterEntry& entry) {
  const std::string plain = kPrefix + entry.parameter;
  const auto dot = plain.rfind('.');
  const std::string module = plain.substr(0, dot), parameter = plain.substr(dot);
  return {entry.file_name, plain, module + ".base_layer" + parameter, module + ".modules_to_save" + parameter,
          module + ".modules_to_save.default" + parameter};
}

/// Copies of frozen originals that PEFT adds when every bias is kept.
bool is_redundant(const std::string& name) {
  return name.find(".original_module.") != std::string::npos || name.find(".modules_to_save.") != std::string::npos;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Kept names that are no module here: heads that are tied to the kept table.
void add_tied_heads(const nn::HookedModule& model, const LoraConfig& config, std::vector<AdapterEntry>& entries) {
  if (config.kept_embeddings.empty()) return;
  const auto parameters = model.named_parameters();
  const auto table = std::find_if(config.kept_embeddings.begin(), config.kept_embeddings.end(),
                                  [&](const auto& name) { return parameters.contains(name + ".weight"); });
  if (table == config.kept_embeddings.end()) return;
  for (const auto& name : config.kept_embeddings) {
    if (!parameters.contains(name + ".weight")) entries.push_back({*table + ".weight", kPrefix + name + ".weight"});
  }
}

/// The parameter of the model that a tensor of the file is for, whether or not the config says so.
std::string plain_parameter(std::string name) {
  if (name.starts_with(kPrefix)) name = name.substr(kPrefix.size());
  const std::string part = ".base_layer";
  if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  return name;
}

std::string find_file(const std::string& folder) {
  for (const char* name : {"/adapter_model.safetensors", "/adapter_model.bin"}) {
    if (is_there(folder + name)) return folder + name;
  }
  throw DataError(folder + " holds neither adapter_model.safetensors nor adapter_model.bin", folder);
}

}  // namespace

std::vector<AdapterEntry> adapter_entries(const nn::HookedModule& model, const LoraConfig& config) {
  std::set<std::string> adapted;
  for (const auto& slot : adapted_slots(model)) adapted.insert(slot.name);
  std::vector<AdapterEntry> entries;
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    const auto dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    const bool is_adapted = adapted.contains(module);
    const std::string base = is_adapted ? kPrefix + module + ".base_layer" + name.substr(dot) : kPrefix + name;
    if (is_adapter_parameter(name)) {
      entries.push_back({name, kPrefix + adapter_name(name)});
    } else if (is_saved(name, config)) {
      entries.push_back({name, kPrefix + name});
    } else if (has_suffix(name, "bias") && (config.bias == "all" || (config.bias == "lora_only" && is_adapted))) {
      entries.push_back({name, base});
    } else if ((is_adapted && base_is_kept(module, config)) || contains(config.kept_embeddings, module)) {
      entries.push_back({name, base});
    }
  }
  add_tied_heads(model, config, entries);
  return entries;
}

std::int64_t kept_vocabulary(const std::string& folder, const nn::HookedModule& model, std::int64_t vocab_size) {
  const auto parameters = model.named_parameters();
  const models::NamesInFiles names(model);
  std::int64_t rows = vocab_size;
  const auto source = io::open_weights(find_file(folder));
  for (const auto& info : source->tensors()) {
    const auto* table = parameters.find(names.parameter_of(plain_parameter(info.name)));
    if (table && table->dim() == 2 && info.shape.size() == 2 && table->size(0) == vocab_size &&
        table->size(1) == info.shape[1])
      rows = std::max(rows, info.shape[0]);
  }
  return rows;
}

AdapterFile::AdapterFile(const std::string& folder, const nn::HookedModule& model, const LoraConfig& config) {
  const std::string file = find_file(folder);
  source_ = io::open_weights(file);
  std::set<std::string> used;
  const models::NamesInFiles known(model);
  const auto parameters = model.named_parameters();
  for (const auto& entry : adapter_entries(model, config)) {
    auto names = spellings(entry);
    for (const auto& info : source_->tensors()) {  // of a table that is tied: the others
      if (known.parameter_of(plain_parameter(info.name)) == entry.parameter) names.push_back(info.name);
    }
    const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return source_->find(n); });
    if (name == names.end()) {
      // A base weight that PEFT may or may not have kept; a model that was adapted before has it.
      if (!is_adapter_parameter(entry.parameter) && !parameters[entry.parameter].requires_grad()) continue;
      throw DataError(file + " lacks the tensor '" + entry.file_name + "'", file);
    }
    if (parameters[entry.parameter].sizes() != at::IntArrayRef(source_->find(*name)->shape)) {
      throw DataError("tensor '" + *name + "' in " + file +
                          " has another shape than the model's; r, target_modules or the base model differ",
                      file);
    }
    names_[entry.parameter] = *name;
    used.insert(*name);
  }
  for (const auto& info : source_->tensors()) {
    if (used.contains(info.name) || is_redundant(info.name)) continue;
    const auto plain = plain_parameter(info.name), base = known.parameter_of(plain);
    if (base != plain && names_.contains(base)) continue;  // a copy of the table that it is tied to
    if (models::NamesInFiles::is_table(base)) {
      if (parameters[base].sizes() != at::IntArrayRef(info.shape)) {
        throw DataError(
            file + " holds '" + info.name + "' for another vocabulary than the base model's; resize the model", file);
      }
      names_[base] = info.name;
      continue;
    }
    throw DataError(file + " holds the tensor '" + info.name +
                        "', which is no part of the adapter that adapter_config.json describes for this model; "
                        "target_modules, modules_to_save or the base model differ",
                    file);
  }
}

std::string AdapterFile::source_name(const std::string& parameter) const {
  const auto it = names_.find(parameter);
  return it == names_.end() ? std::string() : it->second;
}

void load_adapter(nn::HookedModule& model, const LoraConfig& config, const std::string& folder) {
  const AdapterFile file(folder, model, config);
  for (auto& item : model.named_parameters()) {
    const auto name = file.source_name(item.key());
    if (name.empty()) continue;
    auto values = item.value().detach();
    nn::allocate(values);
    file.source()->read(name, 0, values.view({-1}));
  }
}

}  // namespace tessera::peft
