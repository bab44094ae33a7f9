#include "estimate/estimate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include "base/grouped.h"
#include "config/options.h"
#include "estimate/rank_memory.h"
#include "estimate/table.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

using config::ShardingStrategy;

/// "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj".
std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// Elements of the largest block, or of the largest module outside blocks.
std::int64_t largest_layer(const std::vector<ModelTensor>& tensors) {
  std::map<std::string, std::int64_t> layers;
  for (const auto& t : tensors) {
    const auto unit = unit_of(t.name);
    layers[unit.empty() ? module_of(t.name) : unit] += t.numel();
  }
  std::int64_t largest = 0;
  for (const auto& [name, numel] : layers) largest = std::max(largest, numel);
  return largest;
}

std::vector<std::string> dtype_row(const std::string& dtype, std::int64_t layer, std::int64_t total) {
  static const std::map<std::string, double> kBytes = {
      {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1}, {"int4", 0.5}};
  const double bytes = kBytes.at(dtype), whole = static_cast<double>(total);
  // Weights, gradients, two moments; with mixed precision accelerate counts half of it: the moments alone.
  const std::string training = bytes == 4   ? bytes_text(16 * whole)
                               : bytes == 2 ? bytes_text(8 * whole)
                                            : std::string("N/A");
  return {dtype, bytes_text(bytes * static_cast<double>(layer)), bytes_text(bytes * whole), training};
}

/// A matrix of a block that an adapter may sit on.
bool is_linear(const ModelTensor& t) {
  return t.shape.size() == 2 && t.name.ends_with(".weight") && !unit_of(t.name).empty() &&
         t.name.find("relative_attention_bias") == std::string::npos;
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

std::vector<SizedParameter> full(const std::vector<ModelTensor>& tensors, const std::string& compute) {
  std::vector<SizedParameter> out;
  for (const auto& t : tensors) out.push_back({t.name, t.numel(), true, t.dtype == compute});
  return out;
}

/// A method's parameters in one adapted matrix [out, in].
struct AdapterFormula {
  const char* type;
  std::int64_t (*numel)(const EstimateOptions& options, const ModelTensor& matrix);
};
constexpr AdapterFormula kFormulas[] = {
    {"LORA", [](const EstimateOptions& o, const ModelTensor& t) { return o.lora_r * (t.shape[0] + t.shape[1]); }},
    {"IA3", [](const EstimateOptions& o,
               const ModelTensor& t) { return t.shape[has_suffix(module_of(t.name), o.feedforward_modules) ? 1 : 0]; }},
};

/// Prompt tuning: rows of the word embedding's length; an encoder-decoder model stores them for both parts.
SizedParameter prompt(const std::vector<ModelTensor>& tensors, const EstimateOptions& options) {
  std::int64_t dim = 0, parts = 1;
  for (const auto& t : tensors) {
    if (dim == 0 && t.shape.size() == 2 && unit_of(t.name).empty()) dim = t.shape[1];
    if (t.name.starts_with("decoder.block")) parts = 2;
  }
  return {"prompt_encoder.default.embedding.weight", parts * options.num_virtual_tokens * dim, true, true};
}

std::string method_label(const EstimateOptions& options) {
  return options.peft_type == "LORA" ? fmt::format("LoRA, r {}", options.lora_r) : options.peft_type;
}

std::vector<SizedParameter> with_adapters(const std::vector<ModelTensor>& tensors, const std::string& compute,
                                          const EstimateOptions& options) {
  std::vector<SizedParameter> out;
  std::set<std::string> known;
  bool any = false;
  for (const auto& t : tensors) {
    out.push_back({t.name, t.numel(), false, t.dtype == compute});
    if (is_linear(t)) known.insert(last_part(module_of(t.name)));
    if (!is_target(t, options.lora_target_modules)) continue;
    any = true;
    for (const auto& formula : kFormulas)
      if (options.peft_type == formula.type)
        out.push_back({t.name + ".adapter", formula.numel(options, t), true, true});
  }
  if (options.peft_type == "PROMPT_TUNING") {
    out.push_back(prompt(tensors, options));
    return out;
  }
  const bool all_linear = options.lora_target_modules == std::vector<std::string>{"all-linear"};
  require_option(any || all_linear,
                 fmt::format("--lora_target_modules {}: no matrix of a block has such a name; there are {}",
                             fmt::join(options.lora_target_modules, ","), fmt::join(known, ", ")),
                 "lora_target_modules");
  return out;
}

std::vector<std::string> rank_row(const std::string& name, const ModelSizes& sizes, const EstimateOptions& options,
                                  bool on_disk) {
  std::vector<std::string> row = {name + (on_disk ? ", offloaded to a disk" : "")};
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
    row.push_back(bytes_text(static_cast<double>(rank_bytes(sizes, {.strategy = strategy,
                                                                    .ranks = options.num_processes,
                                                                    .low_precision = options.mixed_precision != "no",
                                                                    .whole_masters = options.mixed_precision == "fp16",
                                                                    .on_disk = on_disk}))));
  return row;
}

}  // namespace

std::optional<EstimateOptions> parse_estimate(const std::vector<std::string>& args, std::ostream& out) {
  EstimateOptions o;
  config::OptionTable table("tessera estimate",
                            "says what a model needs: its size, and the memory of a rank that fine-tunes it");
  table.positional(&o.model, "MODEL",
                   "folder of a model (config.json alone is enough) or of an adapter, .safetensors or .gguf file");
  table.add(&o.dtypes, {"--dtypes"}, "dtypes of the first table")
      .choices({"float32", "float16", "bfloat16", "int8", "int4"});
  const char* group = "Fine-tuning";
  table.add(&o.num_processes, {"--num_processes"}, "ranks, all on one host", group);
  table.add(&o.mixed_precision, {"--mixed_precision"}, "of the computation; masters stay in fp32", group)
      .choices({"no", "fp16", "bf16"});
  table.add(&o.peft_type, {"--peft_type"}, "method of the adapters", group).choices({"LORA", "IA3", "PROMPT_TUNING"});
  table.add(&o.lora_r, {"--lora_r"}, "rank of the adapters", group).only_with({{"--peft_type", {"LORA"}}});
  table
      .add(&o.lora_target_modules, {"--lora_target_modules", "--target_modules"},
           "names of the modules in blocks that get an adapter, or all-linear", group)
      .idle_with({"--peft_type", {"PROMPT_TUNING"}});
  table.add(&o.feedforward_modules, {"--feedforward_modules"}, "those of them whose inputs are scaled", group)
      .only_with({{"--peft_type", {"IA3"}}});
  table.add(&o.num_virtual_tokens, {"--num_virtual_tokens"}, "length of the prompt", group)
      .only_with({{"--peft_type", {"PROMPT_TUNING"}}});
  table.add_without_effect({"--library_name", config::Unused::kText, "the library of a model is known"});
  table.add_without_effect({"--trust_remote_code", config::Unused::kBool, "no code is ever loaded"});
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  problems.require(o.num_processes >= 1, "--num_processes must be at least 1", "num_processes");
  problems.require(o.lora_r >= 1, "--lora_r must be at least 1", "lora_r");
  problems.throw_all();
  for (const auto& note : table.notes()) out << note << "\n";
  return o;
}

void print_estimate(const EstimateOptions& options, const std::vector<ModelTensor>& tensors, std::ostream& out) {
  const std::string compute = options.mixed_precision == "no"     ? "F32"
                              : options.mixed_precision == "fp16" ? "F16"
                                                                  : "BF16";
  const auto all = sizes_of(full(tensors, compute)), lora = sizes_of(with_adapters(tensors, compute, options));
  const auto layer = largest_layer(tensors);
  std::vector<std::vector<std::string>> rows;
  for (const auto& dtype : options.dtypes) rows.push_back(dtype_row(dtype, layer, all.total()));
  out << framed_table(fmt::format("Memory Usage for loading `{}`", options.model),
                      {"dtype", "Largest Layer", "Total Size", "Training using Adam"}, rows);
  const std::string adapters = method_label(options);
  rows = {rank_row("all weights", all, options, false), rank_row("all weights", all, options, true)};
  if (lora.trainable > 0) {  // a model without blocks has no place for adapters here
    rows.push_back(rank_row(adapters, lora, options, false));
    rows.push_back(rank_row(adapters, lora, options, true));
  }
  const bool in_layers = options.peft_type != "PROMPT_TUNING";
  out << fmt::format("\n{} parameters; {} trains {} beside them ({})\n", grouped(all.total()),
                     options.peft_type == "LORA" ? "LoRA" : options.peft_type, grouped(lora.trainable),
                     in_layers ? fmt::format("{}", fmt::join(options.lora_target_modules, ","))
                               : fmt::format("{} virtual tokens", options.num_virtual_tokens));
  out << framed_table(
      fmt::format("Peak of a rank in fine-tuning here: AdamW, {} rank(s) of one host, {}", options.num_processes,
                  options.mixed_precision == "no" ? "fp32" : options.mixed_precision),
      {"what trains", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}, rows);
  out << "The program itself (about 0.1 GiB a rank) and the activations come on top; docs/guides/sharding.md has the "
         "formula.\n";
}

}  // namespace tessera::estimate
