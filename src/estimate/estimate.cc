#include "estimate/estimate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "base/grouped.h"
#include "base/low_rank_optimizer.h"
#include "base/quantity_text.h"
#include "config/byte_size.h"
#include "config/options.h"
#include "estimate/adapter_formulas.h"
#include "estimate/hosts_table.h"
#include "estimate/optimizer_state.h"
#include "estimate/rate_text.h"
#include "estimate/table.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

using config::ShardingStrategy;

// So that no sum of bytes is more than an integer holds.
constexpr std::int64_t kLargestRank = 1 << 20;
constexpr int kMostRanks = 1'000'000;
constexpr int kMostBatches = 16384;    // of a step that is played
constexpr double kMostPairs = 0x1p48;  // of tokens of a row, in all rows

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

std::string method_label(const AdapterRequest& adapter) {
  return adapter.peft_type == "LORA" ? fmt::format("LoRA, r {}", adapter.lora_r) : adapter.peft_type;
}

/// The job with these flags, all weights trained or an adapter.
PlanRequest request_of(const EstimateOptions& o, bool with_adapter, bool on_disk) {
  PlanRequest r;
  if (with_adapter) r.adapter = o.adapter;
  if (o.load_in_4bit) r.packed = {.bits = 4, .double_quant = o.use_nested_quant};
  if (o.load_in_8bit) r.packed = {.bits = 8};
  r.ranks = o.num_processes;
  r.hosts = o.num_machines;
  r.mixed_precision = o.mixed_precision;
  r.optim = o.optim;
  r.optim_args = o.optim_args;
  r.optim_target_modules = o.optim_target_modules;
  r.batch = {.rows = o.per_device_train_batch_size,
             .length = o.max_target_length > 0 ? o.max_target_length : o.max_seq_length,
             .checkpointing = o.gradient_checkpointing ? 1 : 0,
             .accumulation = accumulation_of(o.gradient_accumulation_steps, o.sync_each_batch, o.num_processes),
             .encoder_length = o.max_target_length > 0 ? o.max_seq_length : 0};
  r.on_disk = on_disk;
  r.offload_params = o.fsdp_offload_params;
  return r;
}

/// A job of a column or of rows of the tables.
struct NamedJob {
  std::string name;
  PlanRequest request;
};

std::vector<NamedJob> jobs_of(const EstimateOptions& options, const std::vector<ModelTensor>& tensors) {
  std::vector<NamedJob> jobs;
  const bool has_blocks = std::any_of(tensors.begin(), tensors.end(), is_linear);
  for (const bool with_adapter : {false, true}) {
    for (const bool on_disk : {false, true}) {
      if (on_disk && options.on_gpu() && !options.fsdp_offload_params) continue;
      auto request = request_of(options, with_adapter, on_disk);
      if (!request.possible(tensors) || (with_adapter && !has_blocks)) continue;
      jobs.push_back({(with_adapter ? method_label(options.adapter) : std::string("all weights")) +
                          (on_disk ? ", offloaded to a disk" : ""),
                      std::move(request)});
    }
  }
  return jobs;
}

/// Memory that tables are about.
struct Memory {
  const char* of_what;
  RankPlan (*plan)(const PlanRequest& request, const std::vector<ModelTensor>& tensors);
};
constexpr Memory kOfRank{"a rank", plan_for}, kOfGpu{"a rank's GPU", device_plan_for},
    kBesideGpu{"a rank's host memory", host_plan_for};

std::vector<std::string> rank_row(const NamedJob& job, const Memory& memory, const std::vector<ModelTensor>& tensors) {
  std::vector<std::string> row = {job.name};
  for (const auto strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    auto request = job.request;
    request.strategy = strategy;
    row.push_back(bytes_text(memory.plan(request, tensors).held()));
  }
  return row;
}

/// What the numbers under FULL_SHARD consist of.
std::string parts_table(const std::vector<NamedJob>& jobs, const Memory& memory,
                        const std::vector<ModelTensor>& tensors) {
  std::vector<std::string> header = {"FULL_SHARD, part by part"}, names;
  std::vector<RankPlan> plans;
  for (const auto& job : jobs) {
    header.push_back(job.name);
    plans.push_back(memory.plan(job.request, tensors));
    for (const auto& part : plans.back().parts)
      if (std::find(names.begin(), names.end(), part.what) == names.end()) names.emplace_back(part.what);
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& name : names) {
    auto& row = rows.emplace_back(1, name);
    for (const auto& plan : plans) {
      const auto part =
          std::find_if(plan.parts.begin(), plan.parts.end(), [&](const auto& p) { return name == p.what; });
      row.push_back(part == plan.parts.end() ? "" : bytes_text(part->bytes));
    }
  }
  std::vector<std::string> own = {"the program itself"}, sum = {"together"}, phase = {"at its highest in"};
  for (const auto& plan : plans) {
    own.push_back(bytes_text(plan.program));
    sum.push_back(bytes_text(plan.held()));
    phase.emplace_back(plan.phase);
  }
  if (!plans.empty() && plans[0].program > 0) rows.push_back(own);
  rows.insert(rows.end(), {sum, phase});
  return framed_table("Where it goes", header, rows);
}

/// Both tables. The disk changes nothing on a GPU.
std::string memory_tables(const EstimateOptions& options, const Memory& memory,
                          const std::vector<ModelTensor>& tensors) {
  auto jobs = jobs_of(options, tensors);
  if (memory.plan == device_plan_for) std::erase_if(jobs, [](const NamedJob& job) { return job.request.on_disk; });
  std::vector<std::vector<std::string>> rows;
  rows.reserve(jobs.size());
  for (const auto& job : jobs) rows.push_back(rank_row(job, memory, tensors));
  const auto hosts = options.num_machines == 1 ? "one host" : fmt::format("{} hosts", options.num_machines);
  return framed_table(
             fmt::format("Peak of {} in fine-tuning here: {}, {} rank(s) of {}, {}, {} x {} tokens{}{}", memory.of_what,
                         options.optim, options.num_processes, hosts,
                         options.mixed_precision == "no" ? "fp32" : options.mixed_precision,
                         options.per_device_train_batch_size, options.max_seq_length,
                         options.max_target_length > 0 ? fmt::format(" and {}", options.max_target_length) : "",
                         options.gradient_checkpointing ? ", checkpointed" : ""),
             {"what trains", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}, rows) +
         parts_table(jobs, memory, tensors);
}

std::string device_budget_text(const EstimateOptions& options, const std::vector<ModelTensor>& tensors) {
  const auto budget = config::parse_byte_size(options.device_memory, "device_memory");
  std::string out;
  for (const auto& job : jobs_of(options, tensors)) {
    if (job.request.on_disk) continue;
    const auto bytes = device_plan_for(job.request, tensors).total();
    out +=
        fmt::format("\n{}: {} of a rank's GPU, {} the {} of --device_memory; what CUDA itself takes is not counted\n",
                    job.name, bytes_text(bytes), bytes <= budget ? "within" : "more than", options.device_memory);
  }
  return out;
}

std::string budget_text(const EstimateOptions& options, const std::vector<ModelTensor>& tensors) {
  const auto budget = config::parse_byte_size(options.max_memory, "max_memory");
  std::string out;
  for (const auto& job : jobs_of(options, tensors)) {
    if (job.request.on_disk) continue;
    const auto plan = options.on_gpu() ? host_plan_for(job.request, tensors) : plan_for(job.request, tensors);
    const auto bytes = plan.held();
    out += fmt::format("\n{}: {} a rank, {} the {} of --max_memory\n", job.name, bytes_text(bytes),
                       bytes <= budget ? "within" : "more than", options.max_memory);
    if (bytes <= budget || options.on_gpu()) continue;
    const auto ways = ways_to_fit(job.request, tensors, budget);
    out += ways.empty() ? "  no flags make it fit; more ranks would (--num_processes), where each has so much\n"
                        : "it would fit with (beside what is set)\n" + remedy_lines(ways);
  }
  return out;
}

Rates rates_of(const EstimateOptions& o, const MeasureRates& measure, std::ostream& out) {
  Rates rates;
  rates.link = parse_byte_rate(o.link, "link");
  rates.latency = parse_seconds(o.latency, "latency");
  const bool measures = o.flops_per_rank.empty() || o.memory_rate_per_rank.empty();
  const auto found = measures ? measure(o.ranks_per_host(), o.mixed_precision) : RankRates();
  rates.flops = o.flops_per_rank.empty() ? found.flops : parse_flop_rate(o.flops_per_rank, "flops_per_rank");
  rates.memory =
      o.memory_rate_per_rank.empty() ? found.memory : parse_byte_rate(o.memory_rate_per_rank, "memory_rate_per_rank");
  out << fmt::format("\nStep times for ranks of {} and {} of memory{}, links of {} a host, messages of {}\n",
                     rate_text(rates.flops, "FLOP/s"), rate_text(rates.memory, "B/s"),
                     measures ? " (what was not given was measured here)" : "", rate_text(rates.link, "B/s"),
                     duration_text(rates.latency));
  return rates;
}

/// The flags of step times over numbers of hosts.
void add_cluster_flags(config::OptionTable& table, EstimateOptions& o) {
  const char* group = "Step times";
  table
      .add(&o.link, {"--link"},
           "bytes that leave a host in a second, and as many that reach it: 25GB/s, 100Gbit/s. With it the time of a "
           "step is predicted, for 1 to --hosts hosts",
           group)
      .placeholder("RATE");
  const config::Need link{"--link", {config::kSet}};
  table.add(&o.latency, {"--latency"}, "until a message between hosts arrives: 5us", group).only_with({link});
  table
      .add(&o.flops_per_rank, {"--flops_per_rank"},
           "floating point operations a second of a rank's matrix products, while all ranks of its host compute: "
           "1.5TFLOP/s. Not given: measured on this machine",
           group)
      .placeholder("RATE")
      .only_with({link});
  table
      .add(&o.memory_rate_per_rank, {"--memory_rate_per_rank"},
           "bytes that a rank reads and writes in a second, while all do: 10GB/s. Not given: measured on this machine",
           group)
      .placeholder("RATE")
      .only_with({link});
  table.add(&o.gradient_accumulation_steps, {"--gradient_accumulation_steps"}, "micro-batches of a step", group);
  table.add(&o.sync_each_batch, {"--sync_each_batch"}, "their gradients are summed over ranks after each", group)
      .only_with({{"--gradient_accumulation_steps", {config::kSet}}});
}

void check_cluster_flags(const EstimateOptions& o, config::Problems& problems) {
  problems.require(o.gradient_accumulation_steps >= 1, "--gradient_accumulation_steps must be at least 1",
                   "gradient_accumulation_steps");
  if (!o.link.empty()) {
    problems.attempt([&] { (void)parse_byte_rate(o.link, "link"); });
    problems.require(o.max_seq_length > 0, "--link: step times need the tokens of a row; give --max_seq_length",
                     "max_seq_length");
    problems.require(
        o.gradient_accumulation_steps <= kMostBatches,
        fmt::format("--link: steps of at most {} micro-batches are played, --gradient_accumulation_steps is {}",
                    grouped(kMostBatches), grouped(o.gradient_accumulation_steps)),
        "gradient_accumulation_steps");
  }
  problems.attempt([&] { (void)parse_seconds(o.latency, "latency"); });
  if (!o.flops_per_rank.empty()) problems.attempt([&] { (void)parse_flop_rate(o.flops_per_rank, "flops_per_rank"); });
  if (!o.memory_rate_per_rank.empty())
    problems.attempt([&] { (void)parse_byte_rate(o.memory_rate_per_rank, "memory_rate_per_rank"); });
}

void check_device_flags(const EstimateOptions& o, config::Problems& problems) {
  if (!o.on_gpu()) return;
  problems.require(o.link.empty(), "--link predicts steps of ranks on CPUs; leave out --device cuda", "link");
  if (!o.device_memory.empty())
    problems.attempt([&] { (void)config::parse_byte_size(o.device_memory, "device_memory"); });
}

}  // namespace

std::optional<EstimateOptions> parse_estimate(const std::vector<std::string>& args, std::ostream& out) {
  EstimateOptions o;
  config::OptionTable table("tessera estimate",
                            "says what a model needs: its size, and the memory of a rank that fine-tunes it");
  table.example("Llama-2-7b --num_processes 2 --mixed_precision bf16 --max_memory 24GB");
  table.positional(&o.model, "MODEL",
                   "folder, or name on the Hub, of a model (config.json alone is enough) or of an adapter; "
                   ".safetensors or .gguf file");
  table.add(&o.dtypes, {"--dtypes"}, "dtypes of the first table")
      .choices({"float32", "float16", "bfloat16", "int8", "int4"});
  const char* group = "Fine-tuning";
  table
      .add(&o.device, {"--device"},
           "what computes: cuda a GPU for each rank, whose memory is then said beside the host's; auto and cpu the "
           "processor. None of them needs a GPU here",
           group)
      .choices({"auto", "cpu", "cuda"});
  const config::Need gpu{"--device", {"cuda"}};
  table
      .add(&o.fsdp_offload_params, {"--fsdp_offload_params"},
           "all but what computes stays in host memory; false: on the GPUs", group)
      .only_with({gpu});
  table.add(&o.device_memory, {"--device_memory"}, "of a GPU, \"80GB\": says whether it is enough", group)
      .only_with({gpu});
  table.add(&o.num_processes, {"--num_processes"}, "ranks of all hosts; not given with --device cuda: one of each",
            group);
  table.add(&o.num_machines, {"--num_machines", "--hosts"}, "hosts, each with as many of them", group);
  std::optional<int> ranks_per_host;
  table.add(&ranks_per_host, {"--ranks_per_host"}, "in place of --num_processes: ranks of each host", group);
  table.add(&o.mixed_precision, {"--mixed_precision"}, "of the computation; masters stay in fp32", group)
      .choices({"no", "fp16", "bf16"});
  table.add(&o.adapter.peft_type, {"--peft_type"}, "method of the adapters", group).choices(counted_methods());
  table.add(&o.adapter.lora_r, {"--lora_r"}, "rank of the adapters", group).only_with({{"--peft_type", {"LORA"}}});
  table
      .add(&o.adapter.target_modules, {"--lora_target_modules", "--target_modules"},
           "names of the modules in blocks that get an adapter, or all-linear; TRAINABLE_TOKENS: of tables", group)
      .idle_with({"--peft_type", {"PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "LN_TUNING"}});
  table.add(&o.adapter.feedforward_modules, {"--feedforward_modules"}, "those of them whose inputs are scaled", group)
      .only_with({{"--peft_type", {"IA3"}}});
  table.add(&o.adapter.num_virtual_tokens, {"--num_virtual_tokens"}, "length of the prompt", group)
      .only_with({{"--peft_type", {"PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"}}});
  table
      .add(&o.adapter.peft_args, {"--peft_args"},
           "further keys of the method's adapter_config.json: r=4,vector_length=64", group)
      .placeholder("KEY=VALUE,...");
  table.add(&o.optim, {"--optim"}, "as Trainer's --optim", group);
  const config::Need low_rank{"--optim", low_rank_optimizers()};
  table.add(&o.optim_args, {"--optim_args"}, "name=value,... of it; rank and proj_type say what is kept", group)
      .only_with({low_rank});
  table
      .add(&o.optim_target_modules, {"--optim_target_modules"},
           "linear layers that GaLore and APOLLO see through a low rank: all-linear, or parts of names", group)
      .only_with({low_rank});
  table.add(&o.per_device_train_batch_size, {"--per_device_train_batch_size"}, "rows of a rank in one forward", group);
  table.add(&o.max_seq_length, {"--max_seq_length", "--max_seq_len", "--max_length"},
            "tokens of a row; 0: activations are not counted", group);
  table.add(&o.max_target_length, {"--max_target_length"},
            "tokens of what an encoder-decoder model answers; 0: as many as of a row", group);
  table.add(&o.gradient_checkpointing,
            {"--gradient_checkpointing", "--activation_checkpointing", "--fsdp_activation_checkpointing"},
            "blocks run again in backward", group);
  table.add(&o.load_in_4bit, {"--use_4bit_quantization", "--load_in_4bit"},
            "linear layers are packed in 4 bits as they are read", group);
  table
      .add(&o.use_nested_quant, {"--use_nested_quant", "--use_bnb_nested_quant", "--bnb_4bit_use_double_quant"},
           "the scales of the blocks in 8 bits, too", group)
      .only_with({{"--use_4bit_quantization", {"true"}}});
  table.add(&o.load_in_8bit, {"--use_8bit_quantization", "--load_in_8bit"}, "in 8 bits (LLM.int8())", group);
  table.add(
      &o.max_memory, {"--max_memory"},
      "of a rank in host memory, \"20GiB\" or \"24GB\": says whether it is enough, and which flags would make it so",
      group);
  add_cluster_flags(table, o);
  for (const char* flag : {"--use_peft_lora", "--use_peft"})
    table.add_without_effect({flag, config::Unused::kBool, "both tables count all weights as well as the adapter"});
  table.add_without_effect({"--library_name", config::Unused::kText, "the library of a model is known"});
  table.add_without_effect({"--trust_remote_code", config::Unused::kBool, "no code is ever loaded"});
  config::Problems problems;
  if (table.parse(args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  if (ranks_per_host) {
    problems.require(!table.given("num_processes"), "--num_processes and --ranks_per_host exclude each other",
                     "ranks_per_host");
    problems.require(*ranks_per_host >= 1 && *ranks_per_host <= kMostRanks / std::max(1, o.num_machines),
                     "--ranks_per_host must be at least 1, and with --hosts no more than a million ranks",
                     "ranks_per_host");
    o.num_processes = *ranks_per_host * o.num_machines;
  }
  if (o.on_gpu() && !table.given("num_processes") && !ranks_per_host) o.num_processes = std::max(1, o.num_machines);
  check_cluster_flags(o, problems);
  check_device_flags(o, problems);
  problems.require(o.num_processes >= 1 && o.num_processes <= kMostRanks,
                   fmt::format("--num_processes must be 1 to {}", grouped(kMostRanks)), "num_processes");
  problems.require(o.adapter.lora_r >= 1 && o.adapter.lora_r <= kLargestRank,
                   fmt::format("--lora_r must be 1 to {}", grouped(kLargestRank)), "lora_r");
  problems.require(o.num_machines >= 1 && o.num_processes % std::max(1, o.num_machines) == 0,
                   "--num_machines must divide --num_processes", "num_machines");
  problems.require(o.per_device_train_batch_size >= 1, "--per_device_train_batch_size must be at least 1",
                   "per_device_train_batch_size");
  problems.require(o.max_seq_length >= 0, "--max_seq_length must be at least 0", "max_seq_length");
  problems.require(o.max_target_length >= 0 && (o.max_target_length == 0 || o.max_seq_length > 0),
                   "--max_target_length must be at least 0, and needs --max_seq_length", "max_target_length");
  const double length = static_cast<double>(std::max(o.max_seq_length, o.max_target_length));
  problems.require(static_cast<double>(o.per_device_train_batch_size) * length * length <= kMostPairs,
                   fmt::format("--max_seq_length {} with {} row(s) is more than can be counted here; of one row "
                               "16,777,216 tokens are the most",
                               o.max_seq_length, o.per_device_train_batch_size),
                   "max_seq_length");
  problems.require(!o.load_in_4bit || !o.load_in_8bit, "--load_in_4bit and --load_in_8bit exclude each other",
                   "load_in_8bit");
  problems.attempt([&] { (void)parse_peft_args(o.adapter.peft_args); });
  problems.attempt([&] { (void)optimizer_state_bytes(o.optim, "", {1}); });
  problems.attempt([&] { (void)parse_low_rank(o.optim_args); });
  problems.attempt([&] { check_low_rank_targets(o.optim_target_modules, o.optim); });
  if (!o.max_memory.empty()) problems.attempt([&] { (void)config::parse_byte_size(o.max_memory, "max_memory"); });
  problems.throw_all();
  for (const auto& note : table.notes()) out << note << "\n";
  return o;
}

void print_estimate(const EstimateOptions& options, const std::vector<ModelTensor>& tensors, std::ostream& out,
                    const MeasureRates& measure) {
  require_option(options.max_target_length == 0 || encoder_shape(tensors).blocks > 0,
                 "--max_target_length: the model has no encoder; --max_seq_length gives the tokens of a row",
                 "max_target_length");
  const auto jobs = jobs_of(options, tensors);
  std::int64_t total = 0, trained = 0;
  for (const auto& t : tensors) total += t.numel();
  const auto layer = largest_layer(tensors);
  std::vector<std::vector<std::string>> rows;
  for (const auto& dtype : options.dtypes) rows.push_back(dtype_row(dtype, layer, total));
  out << framed_table(fmt::format("Memory Usage for loading `{}`", options.model),
                      {"dtype", "Largest Layer", "Total Size", "Training using Adam"}, rows);
  for (const auto& job : jobs) {
    if (job.request.adapter) trained = sizes_of(parameters_of(job.request, tensors)).trainable;
  }
  const auto& adapter = options.adapter;
  out << fmt::format("\n{} parameters; {} trains {} beside them ({})\n", grouped(total),
                     adapter.peft_type == "LORA" ? "LoRA" : adapter.peft_type, grouped(trained),
                     adapter.has_virtual_tokens()       ? fmt::format("{} virtual tokens", adapter.num_virtual_tokens)
                     : adapter.peft_type == "LN_TUNING" ? "norms"
                     : !adapter.in_layers()             ? "rows of tokens"
                                                        : fmt::format("{}", fmt::join(adapter.target_modules, ",")));
  if (options.on_gpu()) out << memory_tables(options, kOfGpu, tensors);
  out << memory_tables(options, options.on_gpu() ? kBesideGpu : kOfRank, tensors);
  if (options.on_gpu() && !options.device_memory.empty()) out << device_budget_text(options, tensors);
  if (!options.max_memory.empty()) out << budget_text(options, tensors);
  if (!options.link.empty()) {
    const auto rates = rates_of(options, measure, out);
    for (const auto& job : jobs)
      if (!job.request.on_disk)
        out << hosts_table({job.name, job.request, rates, options.gradient_accumulation_steps, options.sync_each_batch},
                           tensors);
  }
  out << "docs/guides/large_models.md says what the parts are.\n";
}

}  // namespace tessera::estimate
