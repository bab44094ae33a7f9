#include "peft/combine/combine_lora.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "peft/adapter_config.h"
#include "peft/combine/combine_layer.h"
#include "peft/combine/lora_inputs.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

enum class Form { kFactors, kConcatenated, kDecomposed };

struct Type {
  const char* name;
  Form form;
  Pruning pruning = Pruning::kNone;
  bool elects_signs = false;
};

constexpr Type kTypes[] = {
    {"svd", Form::kDecomposed},
    {"linear", Form::kFactors},
    {"cat", Form::kConcatenated},
    {"ties", Form::kFactors, Pruning::kMagnitude, true},
    {"ties_svd", Form::kDecomposed, Pruning::kMagnitude, true},
    {"dare_ties", Form::kFactors, Pruning::kRandom, true},
    {"dare_linear", Form::kFactors, Pruning::kRandom},
    {"dare_ties_svd", Form::kDecomposed, Pruning::kRandom, true},
    {"dare_linear_svd", Form::kDecomposed, Pruning::kRandom},
    {"magnitude_prune", Form::kFactors, Pruning::kMagnitude},
    {"magnitude_prune_svd", Form::kDecomposed, Pruning::kMagnitude},
};

const Type& type_of(const std::string& name) {
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return name == t.name; });
  if (type != std::end(kTypes)) return *type;
  std::string all;
  for (const auto& type : kTypes) all += (all.empty() ? "" : ", ") + std::string(type.name);
  throw ConfigError(fmt::format("combination_type is '{}'; there are {}", name, all), "combination_type");
}

TaskRule rule_of(const Type& type, const CombineOptions& o, std::vector<std::string>& notes) {
  TaskRule rule{type.pruning, type.elects_signs, 1.0, o.majority_sign, o.seed};
  if (type.pruning == Pruning::kNone) return rule;
  if (!o.density) throw ConfigError(fmt::format("combination_type {} needs a density", type.name), "density");
  rule.density = *o.density;
  const bool random = type.pruning == Pruning::kRandom;
  if (rule.density < 0 || (random && rule.density == 0)) {
    throw ConfigError(
        fmt::format("density must {}, found {}",
                    random ? "be above 0, for what is kept is divided by it" : "not be negative", rule.density),
        "density");
  }
  if (rule.density >= 1) notes.push_back("a density of 1 or more prunes nothing");
  return rule;
}

/// As PEFT counts it: also where no layer has the rank of `r`.
std::int64_t largest_rank(const Lora& config) {
  auto rank = config.r;
  for (const auto& [pattern, r] : config.rank_pattern) rank = std::max(rank, r);
  return rank;
}

std::int64_t new_rank(const Type& type, const CombineOptions& o, const std::vector<LoraInput>& inputs) {
  std::int64_t largest = 0, sum = 0;
  std::string ranks;
  bool equal = true;
  for (const auto& input : inputs) {
    const auto rank = largest_rank(input.config);
    equal = equal && (largest == 0 || rank == largest);
    largest = std::max(largest, rank);
    sum += rank;
    ranks += fmt::format("{}{}: {}", ranks.empty() ? "" : ", ", input.name, rank);
  }
  if (type.form == Form::kConcatenated) return sum;
  if (type.form == Form::kDecomposed) return o.svd_rank.value_or(largest);
  if (!equal) {
    throw ConfigError(fmt::format("combination_type {} takes adapters of one rank, found {}; cat, svd and the types "
                                  "that end with _svd take different ones",
                                  type.name, ranks),
                      "combination_type");
  }
  return largest;
}

std::string common_base(const CombineOptions& o, const std::vector<LoraInput>& inputs) {
  if (!o.base_model.empty()) return o.base_model;
  const LoraInput* first = nullptr;
  for (const auto& input : inputs) {
    const auto& base = input.config.base_model_name_or_path;
    if (base.empty()) continue;
    if (!first) first = &input;
    const auto& known = first->config.base_model_name_or_path;
    if (base != known) {
      throw ConfigError(fmt::format("adapter '{}' is for the base model '{}', adapter '{}' for '{}'; if these are the "
                                    "same model, name it (base_model_name_or_path)",
                                    first->name, known, input.name, base),
                        "base_model_name_or_path");
    }
  }
  return first ? first->config.base_model_name_or_path : "";
}

/// As PEFT joins them; where other settings choose layers, too, every layer by its name.
void join_targets(const std::vector<LoraInput>& inputs, const LoraLayers& all, Lora& out) {
  const auto& first = inputs[0].config;
  const bool alike = std::all_of(inputs.begin(), inputs.end(), [&](const LoraInput& i) {
    const auto& c = i.config;
    return c.target_regex.empty() == first.target_regex.empty() && !wants_all_linear(c) &&
           c.layers_to_transform == first.layers_to_transform && c.layers_pattern == first.layers_pattern &&
           c.exclude_modules == first.exclude_modules && c.exclude_regex == first.exclude_regex;
  });
  out.target_modules.clear();
  if (!alike) {
    out.target_regex = out.exclude_regex = "";
    out.exclude_modules = out.layers_pattern = {};
    out.layers_to_transform.clear();
    for (const auto& [module, place] : all.layers) out.target_modules.push_back(module);
    return;
  }
  std::set<std::string> names;
  std::string regex;
  for (const auto& input : inputs) {
    names.insert(input.config.target_modules.begin(), input.config.target_modules.end());
    regex += (regex.empty() ? "(" : "|(") + input.config.target_regex + ")";
  }
  out.target_modules.assign(names.begin(), names.end());
  if (!first.target_regex.empty()) out.target_regex = regex;
}

Lora joined_config(const CombineOptions& o, const std::vector<LoraInput>& inputs, const LoraLayers& all) {
  Lora out = inputs[0].config;
  out.base_model_name_or_path = common_base(o, inputs);
  out.use_rslora = false;
  out.rank_pattern.clear();
  out.alpha_pattern.clear();
  std::set<std::string> saved;
  for (const auto& input : inputs)
    saved.insert(input.config.modules_to_save.begin(), input.config.modules_to_save.end());
  out.modules_to_save.assign(saved.begin(), saved.end());
  join_targets(inputs, all, out);
  return out;
}

/// The rank of a layer of the combination; ConfigError where its adapters' ranks differ and must not.
std::int64_t rank_in(const std::string& module, const LoraPlace& place, Form form, std::int64_t rank) {
  if (form != Form::kFactors) return rank;
  for (const auto& share : place.shares) {
    if (share.rank == place.shares[0].rank) continue;
    throw ConfigError(fmt::format("'{}' has rank {} in one adapter and {} in another (rank_pattern); take cat or svd",
                                  module, place.shares[0].rank, share.rank),
                      "combination_type");
  }
  return place.shares[0].rank;
}

class Combiner {
 public:
  Combiner(const CombineOptions& options, const std::string& output)
      : options_(options),
        output_(output),
        type_(type_of(options.adapters.size() == 1 ? "linear" : options.combination_type)) {}

  CombineReport run() {
    rule_ = rule_of(type_, options_, report_.notes);
    for (const auto& adapter : options_.adapters) inputs_.push_back(open_lora(adapter.name, adapter.folder));
    const auto rank = new_rank(type_, options_, inputs_);
    const auto all = lora_layers(inputs_);
    Lora config = joined_config(options_, inputs_, all);
    config.r = rank;
    config.lora_alpha = static_cast<double>(rank);
    std::vector<io::TensorInfo> infos;
    for (const auto& [module, place] : all.layers) {
      const auto own = rank_in(module, place, type_.form, rank);
      if (own != rank) {
        config.rank_pattern.emplace_back(module, own);
        config.alpha_pattern.emplace_back(module, static_cast<double>(own));
      }
      infos.push_back({place.a, at::kFloat, {own, place.in}, output_});
      infos.push_back({place.b, at::kFloat, {place.out, own}, output_});
    }
    for (const auto& [name, input] : all.others) infos.push_back(*inputs_[input].source->find(name));
    write(all, rank, std::move(infos));
    write_file_atomically(output_ + "/adapter_config.json", adapter_config_json(config));
    report_.modules = static_cast<std::int64_t>(all.layers.size());
    report_.rank = rank;
    report_.combination_type = type_.name;
    return std::move(report_);
  }

 private:
  void write(const LoraLayers& all, std::int64_t rank, std::vector<io::TensorInfo> infos) {
    ensure_writable_folder(output_);
    io::SafetensorsWriter writer(output_ + "/adapter_model.safetensors", std::move(infos));
    for (const auto& [module, place] : all.layers) {
      const auto factors = combined(shares_of(module, place), rank);
      writer.write(place.a, factors.a);
      writer.write(place.b, factors.b);
    }
    for (const auto& [name, input] : all.others) writer.write(name, io::read_tensor(*inputs_[input].source, name));
    writer.commit();
  }

  static at::Tensor factor_of(const LoraInput& input, const std::string& name) {
    auto values = io::read_tensor(*input.source, name).to(at::kFloat);
    if (at::isfinite(values).all().item<bool>()) return values;
    const auto& file = input.source->find(name)->file;
    throw DataError(
        fmt::format("{}: '{}' of adapter '{}' has values that are not finite; train it again, or leave it out", file,
                    name, input.name),
        file);
  }

  std::vector<LayerShare> shares_of(const std::string& module, const LoraPlace& place) const {
    std::vector<LayerShare> shares;
    for (const auto& share : place.shares) {
      const auto& input = inputs_[share.input];
      const auto& adapter = options_.adapters[share.input];
      shares.push_back({factor_of(input, place.a), factor_of(input, place.b), adapter.weight, share.scaling,
                        adapter.name + "." + module});
    }
    return shares;
  }

  Factors combined(const std::vector<LayerShare>& shares, std::int64_t rank) const {
    switch (type_.form) {
      case Form::kFactors:
        return combine_factors(shares, rule_);
      case Form::kConcatenated:
        return concatenate_factors(shares, rank);
      case Form::kDecomposed:
        break;
    }
    return decompose_products(shares, rule_, rank, options_.svd_clamp);
  }

  const CombineOptions& options_;
  const std::string& output_;
  const Type& type_;
  TaskRule rule_;
  std::vector<LoraInput> inputs_;
  CombineReport report_;
};

}  // namespace

const std::vector<std::string>& combination_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& type : kTypes) all.emplace_back(type.name);
    return all;
  }();
  return names;
}

bool prunes(const std::string& combination_type) {
  return type_of(combination_type).pruning != Pruning::kNone;
}

CombineReport combine_lora(const CombineOptions& options, const std::string& output) {
  TESSERA_CHECK(!options.adapters.empty(), "there is no adapter to combine");
  return Combiner(options, output).run();
}

}  // namespace tessera::peft
