#include "peft/adapter_files.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/dotted_name.h"
#include "base/open_file.h"
#include "io/renamed_source.h"
#include "models/names_in_files.h"
#include "peft/adapter_config.h"
#include "peft/apply.h"
#include "peft/slots.h"
#include "peft/targets.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

/// PEFT keeps the base weights of targets with these names; other families' embeddings it does not.
bool base_is_kept(const std::string& module, const PeftConfig& config) {
  const auto name = last_part(module);
  if (name != "embed_tokens" && name != "lm_head") return false;
  if (!config.target_regex.empty()) return true;
  const auto& targets = config.target_modules;
  return std::any_of(targets.begin(), targets.end(),
                     [](const auto& t) { return t == "embed_tokens" || t == "lm_head"; });
}

/// Spellings of a name that readers of PEFT's files accept.
std::vector<std::string> spellings(const AdapterEntry& entry, const std::string& prefix) {
  const std::string plain = prefix + entry.parameter;
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
void add_tied_heads(const nn::HookedModule& model, const PeftMethod& method, std::vector<AdapterEntry>& entries) {
  const auto& kept = method.kept_embeddings;
  if (kept.empty()) return;
  const auto parameters = model.named_parameters();
  const auto table =
      std::find_if(kept.begin(), kept.end(), [&](const auto& name) { return parameters.contains(name + ".weight"); });
  if (table == kept.end()) return;
  for (const auto& name : kept) {
    if (!parameters.contains(name + ".weight"))
      entries.push_back({*table + ".weight", method.prefix() + name + ".weight"});
  }
}

/// The parameter of the model that a tensor of the file is for, whether or not the config says so.
std::string plain_parameter(std::string name) {
  for (const std::string prefix : {"base_model.model.", "base_model."}) {
    if (name.starts_with(prefix)) {
      name = name.substr(prefix.size());
      break;
    }
  }
  const std::string part = ".base_layer";
  if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  return name;
}

constexpr std::string_view kPrefix = "base_model.model.";

/// What the names in an adapter file lack of this model's: "model." where the adapter is one of the body alone (PEFT's
/// PeftModel over LlamaModel), else nothing.
std::string missing_part(const io::TensorSource& file, const nn::HookedModule& model) {
  const auto parameters = model.named_parameters().keys();
  const std::string body = models::NamesInFiles(parameters).body();
  const auto has_part = [&](const std::string& part) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const auto& name) { return name.starts_with(part); });
  };
  bool lacks = false;
  for (const auto& info : file.tensors()) {
    if (body.empty() || !info.name.starts_with(kPrefix)) continue;
    const std::string name = info.name.substr(kPrefix.size()), first = name.substr(0, name.find('.') + 1);
    if (has_part(first)) return {};
    lacks = lacks || has_part(body + first);
  }
  return lacks ? body : std::string();
}

/// Under the names that the adapter of the whole model would have.
std::shared_ptr<const io::TensorSource> open_adapter(const std::string& folder, const nn::HookedModule& model) {
  auto file = io::open_weights(adapter_weights_in(folder));
  const auto part = missing_part(*file, model);
  if (part.empty()) return file;
  return io::renamed_source(file, [&](const std::string& name) {
    return name.starts_with(kPrefix) ? std::string(kPrefix) + part + name.substr(kPrefix.size()) : name;
  });
}

}  // namespace

std::unique_ptr<PeftMethod> adapter_method(const std::string& folder, const nn::HookedModule& model,
                                           std::vector<std::string>* notes) {
  auto method = read_adapter_config(folder, notes);
  if (wants_all_linear(*method)) return method;
  const auto part = missing_part(*io::open_weights(adapter_weights_in(folder)), model);
  if (part.empty()) return method;
  const auto escaped = part.substr(0, part.size() - 1) + "\\.";
  for (auto* regex : {&method->target_regex, &method->exclude_regex})
    if (!regex->empty()) *regex = escaped + "(?:" + *regex + ")";
  for (const auto& slot : slots(model))  // the body had no head
    if (!slot.name.starts_with(part) && is_target(slot.name, *method)) method->exclude_modules.push_back(slot.name);
  return method;
}

std::string adapter_weights_in(const std::string& folder) {
  for (const char* name : {"/adapter_model.safetensors", "/adapter_model.bin"}) {
    if (is_there(folder + name)) return folder + name;
  }
  throw DataError(folder + " holds neither adapter_model.safetensors nor adapter_model.bin", folder);
}

std::vector<AdapterEntry> adapter_entries(const nn::HookedModule& model, const PeftMethod& method) {
  std::set<std::string> adapted;
  for (const auto& slot : adapted_slots(model)) adapted.insert(slot.name);
  const auto adapters = nn::adapter_parameters(model);
  const models::NamesInFiles names(model);
  std::vector<AdapterEntry> entries;
  for (const auto& item : model.named_parameters()) {
    const auto& name = item.key();
    const auto dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    const bool is_adapted = adapted.contains(module);
    const std::string base = method.prefix() + (is_adapted ? module + ".base_layer" + name.substr(dot) : name);
    if (adapters.contains(name) || method.trains(name)) {
      for (auto& file_name : method.file_names(name)) entries.push_back({name, std::move(file_name)});
    } else if (is_saved(name, method)) {
      for (const auto& written : names.to_write(name)) entries.push_back({name, method.prefix() + written});
    } else if (has_suffix(name, "bias") && (method.bias == "all" || (method.bias != "none" && is_adapted))) {
      entries.push_back({name, base});
    } else if ((is_adapted && method.keeps_base_weights() && base_is_kept(module, method)) ||
               contains(method.kept_embeddings, module)) {
      entries.push_back({name, base});
    }
  }
  add_tied_heads(model, method, entries);
  return entries;
}

std::int64_t kept_vocabulary(const std::string& folder, const nn::HookedModule& model, std::int64_t vocab_size) {
  const auto parameters = model.named_parameters();
  const models::NamesInFiles names(model);
  std::int64_t rows = vocab_size;
  const auto source = open_adapter(folder, model);
  for (const auto& info : source->tensors()) {
    const auto* table = parameters.find(names.parameter_of(plain_parameter(info.name)));
    if (table && table->dim() == 2 && info.shape.size() == 2 && table->size(0) == vocab_size &&
        table->size(1) == info.shape[1])
      rows = std::max(rows, info.shape[0]);
  }
  return rows;
}

std::int64_t kept_classes(const std::string& folder) {
  static const Pattern kHead(
      R"((?:.*\.)?(?:score|classifier|classifier\.out_proj)(?:\.modules_to_save(?:\.default)?)?\.weight)",
      "classifier");
  const auto source = io::open_weights(adapter_weights_in(folder));
  for (const auto& info : source->tensors())
    if (info.shape.size() == 2 && kHead.matches(info.name)) return info.shape[0];
  return 0;
}

AdapterFile::AdapterFile(const std::string& folder, const nn::HookedModule& model, const PeftMethod& method) {
  const std::string file = adapter_weights_in(folder);
  source_ = method.readable(open_adapter(folder, model));
  std::set<std::string> used;
  const models::NamesInFiles known(model);
  const auto parameters = model.named_parameters();
  const auto adapters = nn::adapter_parameters(model);
  auto entries = adapter_entries(model, method);
  for (const auto& parameter : adapters) {  // those that are written in another form
    const bool listed =
        std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.parameter == parameter; });
    if (!listed && source_->find(method.file_name(parameter)))
      entries.push_back({parameter, method.file_name(parameter)});
  }
  for (const auto& entry : entries) {
    auto names = spellings(entry, method.prefix());
    for (const auto& info : source_->tensors()) {  // of a table that is tied: the others
      if (known.parameter_of(plain_parameter(info.name)) == entry.parameter) names.push_back(info.name);
    }
    const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return source_->find(n); });
    if (name == names.end()) {
      // A base weight that PEFT may or may not have kept; a model that was adapted before has it.
      if (!adapters.contains(entry.parameter) && !parameters[entry.parameter].requires_grad()) continue;
      if (names_.contains(entry.parameter)) continue;  // a copy
      throw DataError(file + " lacks the tensor '" + entry.file_name + "'", file);
    }
    if (parameters[entry.parameter].sizes() != at::IntArrayRef(source_->find(*name)->shape)) {
      throw DataError(file + ": tensor '" + *name + "' has the shape " +
                          tensor::shape_text(source_->find(*name)->shape) + ", expected " +
                          tensor::shape_text(parameters[entry.parameter].sizes()) +
                          " for this model; the method's sizes (r, ...), target_modules or the base model differ",
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
        throw DataError(file + ": tensor '" + info.name + "' has the shape " + tensor::shape_text(info.shape) +
                            ", expected " + tensor::shape_text(parameters[base].sizes()) +
                            " as the base model's vocabulary; resize the model",
                        file);
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

void load_adapter(nn::HookedModule& model, const PeftMethod& method, const std::string& folder) {
  const AdapterFile file(folder, model, method);
  for (auto& item : model.named_parameters()) {
    const auto name = file.source_name(item.key());
    if (name.empty()) continue;
    auto values = item.value().detach();
    nn::allocate(values);
    file.source()->read(name, 0, values.view({-1}));
  }
  initialise_from_weights(model, method, std::nullopt);
}

}  // namespace tessera::peft
