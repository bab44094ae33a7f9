#include "tasks/memory_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <span>

#include "base/json_text.h"
#include "base/low_rank_optimizer.h"
#include "base/quantity_text.h"
#include "config/byte_size.h"
#include "estimate/adapter_formulas.h"
#include "estimate/layer_places.h"
#include "estimate/optimizer_state.h"
#include "families/families.h"
#include "fsdp/plan/mesh.h"
#include "fsdp/plan/wrap_classes.h"
#include "launch/gpus.h"
#include "launch/launch.h"
#include "models/check_sizes.h"
#include "peft/adapter_config.h"
#include "peft/methods/adalora.h"
#include "peft/methods/ia3.h"
#include "peft/methods/lora.h"
#include "peft/methods/virtual_token_method.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/packed_weight.h"
#include "tessera/tensor/allocator.h"
#include "train/low_rank_targets.h"

namespace tessera::tasks {
namespace {

config::ShardingStrategy strategy_of(fsdp::ShardingStrategy strategy) {
  switch (strategy) {
    case fsdp::ShardingStrategy::kFullShard:
      return config::ShardingStrategy::kFullShard;
    case fsdp::ShardingStrategy::kShardGradOp:
      return config::ShardingStrategy::kShardGradOp;
    case fsdp::ShardingStrategy::kNoShard:
      return config::ShardingStrategy::kNoShard;
    case fsdp::ShardingStrategy::kHybridShard:
      return config::ShardingStrategy::kHybridShard;
    case fsdp::ShardingStrategy::kHybridShardZero2:
      return config::ShardingStrategy::kHybridShardZero2;
  }
  throw Error("a sharding strategy without a name");
}

std::int64_t ranks_of_host(const comm::Communicator& group) {
  const char* local = group.backend() == "hosts" ? std::getenv("LOCAL_WORLD_SIZE") : nullptr;
  const std::int64_t ranks = local ? std::atoll(local) : 0;
  return ranks > 0 ? ranks : group.size();
}

/// Whether the head has an adapter, so that the loss does not read its weight (models/causal_lm_head.cc).
bool head_is_adapted(const peft::AdapterReport& adapters) {
  return std::any_of(adapters.adapted.begin(), adapters.adapted.end(), [](const std::string& module) {
    return estimate::unit_of(module).empty() && estimate::is_head(module);
  });
}

/// Of its files: in the dtype of the computation, or packed as they have it.
bool is_mapped(const std::string& name, const at::Tensor& p, bool packed, const fsdp::FsdpOptions& fsdp) {
  if (fsdp.gather != fsdp::GatherForm::kAuto && fsdp.gather != fsdp::GatherForm::kMapped) return false;
  const auto stored = fsdp.source_name ? fsdp.source_name(name) : name;
  const auto* info = stored.empty() ? nullptr : fsdp.source->find(stored);
  if (!info) return false;
  if (packed) return fsdp.source->map_bytes(stored).has_value();
  return info->dtype == fsdp.precision.param_dtype.value_or(p.scalar_type());
}

std::vector<estimate::SizedParameter> parameters_of(const Assembled& model, const fsdp::FsdpOptions& fsdp,
                                                    const PlanSettings& settings) {
  const auto& optim = settings.optim;
  const nn::DenseElements elements(*model.model);
  std::set<std::string> low_rank;
  estimate::LowRankShape shape;
  if (is_low_rank_optimizer(optim)) {
    low_rank = train::low_rank_weights(settings.optim_target_modules, *model.model);
    shape = estimate::parse_low_rank(settings.optim_args);
  }
  const bool allocates = model.adapters && dynamic_cast<const peft::AdaLora*>(model.adapters->method.get());
  std::vector<estimate::SizedParameter> out;
  for (const auto& item : model.model->named_parameters()) {
    const auto& p = item.value();
    // Codes are integers, of LLM.int8() as many as there are weights.
    const bool packed = elements.of(item.key(), p) != p.numel() || !at::isFloatingType(p.scalar_type());
    estimate::SizedParameter sized{.name = item.key(), .numel = p.numel(), .trainable = p.requires_grad()};
    if (sized.trainable && estimate::is_known_optimizer(optim))
      sized.state_bytes = estimate::optimizer_state_bytes(optim, item.key(), p.sizes().vec());
    if (sized.trainable && low_rank.contains(item.key()) && p.dim() == 2)
      estimate::count_low_rank(sized, optim, shape, p.sizes().vec());
    const bool of_factor = item.key().find(".lora_") != std::string::npos;
    if (sized.trainable && allocates && of_factor && sized.state_bytes >= 0)
      sized.state_bytes += estimate::rank_allocation_bytes(sized.numel);
    if (!sized.trainable) sized.stored_as_computed = is_mapped(item.key(), p, packed, fsdp);
    if (packed) sized.packed_bytes = std::max<std::int64_t>(1, p.numel() * static_cast<std::int64_t>(p.element_size()));
    out.push_back(std::move(sized));
  }
  return out;
}

/// The shapes of the model's matrices, whatever they are packed as.
std::vector<estimate::ModelTensor> described_tensors(const std::string& folder) {
  return estimate::tensors_of(families::parse_config(models::read_described_config(folder), folder + "/config.json"));
}

/// Of the modules that have an adapter. Those of a replicated layer are told by their names in the block: adapters sit
/// at all places of one or at none.
estimate::OfAdapter of_adapter(const peft::AdapterReport& report, const estimate::BatchShape& batch,
                               std::int64_t element_bytes) {
  const auto& method = *report.method;
  const auto* lora = dynamic_cast<const peft::Lora*>(&method);
  const auto* ia3 = dynamic_cast<const peft::Ia3*>(&method);
  const bool placed = lora && !lora->layer_replication.is_null();
  const auto place = [placed](const std::string& module) {
    return placed ? module.substr(estimate::unit_of(module).size()) : module;
  };
  std::set<std::string> adapted, trained;
  for (const auto& name : report.adapted) adapted.insert(place(name));
  for (const auto& name : report.saved) trained.insert(place(name));
  return [=, type = method.type(), settings = formula_settings(method)](const estimate::ModelTensor& t) {
    const auto module = estimate::module_of(t.name);
    if (!adapted.contains(place(module))) return estimate::AdapterBytes{.reads_input = trained.contains(place(module))};
    const auto [in, out] = estimate::sides_of(t);
    return estimate::layer_adapter_bytes(type, settings, {in, out, ia3 && ia3->is_feedforward(module)},
                                         {batch.tokens_of(t), element_bytes});
  };
}

std::string parts_text(const estimate::RankPlan& plan) {
  std::vector<std::string> parts;
  for (const auto& part : plan.parts) parts.push_back(fmt::format("{} {}", part.what, bytes_text(part.bytes)));
  parts.push_back("the program " + bytes_text(plan.program));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::map<std::string, std::string> formula_settings(const peft::PeftMethod& method) {
  std::map<std::string, std::string> out;
  const auto keys = nlohmann::json::parse(peft::adapter_config_json(method));
  for (const auto& [key, value] : keys.items())
    if (!value.is_null()) out[key] = value.is_string() ? value.get<std::string>() : json_text(value);
  return out;
}

namespace {

/// A job, and what it is of.
struct DescribedJob {
  std::vector<estimate::ModelTensor> tensors;
  estimate::RankJob job;
};

DescribedJob described_job(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                           const comm::Communicator& group, const std::vector<estimate::SizedParameter>& parameters) {
  estimate::RankJob job{.strategy = strategy_of(fsdp.strategy),
                        .ranks = static_cast<int>(ranks_of_host(group)),
                        .low_precision = fsdp.precision.param_dtype.value_or(at::kFloat) != at::kFloat,
                        .whole_masters = fsdp.precision.param_dtype == at::kHalf,
                        .on_disk = !fsdp.offload_folder.empty(),
                        .hosts = hosts_of(group)};
  const auto* lora = model.adapters ? dynamic_cast<const peft::Lora*>(model.adapters->method.get()) : nullptr;
  auto tensors =
      estimate::at_places(described_tensors(settings.model_folder), lora ? json_text(lora->layer_replication) : "");
  job.activations = estimate::activation_shape(tensors);
  job.encoder = estimate::encoder_shape(tensors);
  job.activations.packed_head = std::any_of(parameters.begin(), parameters.end(), [](const auto& p) {
    return p.packed_bytes > 0 && estimate::unit_of(p.name).empty() && estimate::is_head(p.name);
  });
  job.batch = settings.batch;
  job.batch.checkpointing = fsdp::recomputed_every(fsdp.activation_checkpointing);
  if (model.adapters) {
    job.activations.whole_logits = head_is_adapted(*model.adapters);
    const auto& method = *model.adapters->method;
    if (const auto* prompt = dynamic_cast<const peft::VirtualTokenMethod*>(&method))
      job.batch.put_in_front(estimate::tokens_in_front(method.type(), prompt->num_virtual_tokens));
    const auto adapter = of_adapter(*model.adapters, job.batch, job.low_precision ? 2 : 4);
    job.adapters = estimate::adapter_activations(tensors, adapter);
    job.encoder_adapters = estimate::encoder_adapter_activations(tensors, adapter);
  }
  return {std::move(tensors), std::move(job)};
}

estimate::DeviceJob device_job(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                               const comm::Communicator& group,
                               const std::vector<estimate::SizedParameter>& parameters) {
  const auto [tensors, rank] = described_job(model, fsdp, settings, group, parameters);
  estimate::DeviceJob job{.strategy = rank.strategy,
                          .ranks = rank.ranks,
                          .hosts = rank.hosts,
                          .low_precision = rank.low_precision,
                          .state_on_host = fsdp.state_on == fsdp::StateOn::kHost,
                          .optimizer_on_host = estimate::computes_on_host(settings.optim),
                          .shape = estimate::device_shape(tensors),
                          .activations = rank.activations,
                          .encoder = rank.encoder,
                          .adapters = rank.adapters,
                          .encoder_adapters = rank.encoder_adapters,
                          .batch = rank.batch};
  job.head_trains = estimate::head_trains(job.shape, parameters);
  return job;
}

/// Without the program.
estimate::RankPlan plan_parts(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                              const comm::Communicator& group) {
  const auto parameters = parameters_of(model, fsdp, settings);
  if (fsdp::is_resident(fsdp)) {
    std::int64_t largest = 0;
    for (const auto& p : parameters) largest = std::max(largest, p.numel);
    return estimate::host_beside_device(estimate::sizes_of(parameters),
                                        device_job(model, fsdp, settings, group, parameters), largest);
  }
  auto job = described_job(model, fsdp, settings, group, parameters).job;
  if (!fsdp.device.is_cpu()) {  // activations are there
    job.batch.length = 0;
    job.adapters = job.encoder_adapters = {};
    job.for_device = true;
  }
  return estimate::plan_rank(estimate::sizes_of(parameters), job);
}

}  // namespace

int hosts_of(const comm::Communicator& group) {
  return static_cast<int>(std::max<std::int64_t>(1, group.size() / ranks_of_host(group)));
}

estimate::RankPlan plan_rank(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                             const comm::Communicator& group) {
  auto plan = plan_parts(model, fsdp, settings, group);
  plan.program = estimate::program_bytes(ranks_of_host(group), launch::is_launched() && !launch::has_gpu());
  return plan;
}

estimate::RankPlan plan_device(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                               const comm::Communicator& group) {
  if (fsdp.device.is_cpu()) return {};
  const auto parameters = parameters_of(model, fsdp, settings);
  return estimate::plan_device(estimate::sizes_of(parameters), device_job(model, fsdp, settings, group, parameters));
}

std::int64_t budget_bytes(const std::string& max_memory) {
  return max_memory.empty() ? 0 : config::parse_byte_size(max_memory, "max_memory");
}

void require_fit(const estimate::RankPlan& plan, const estimate::PlanRequest& request, const std::string& model_folder,
                 const std::string& max_memory) {
  const auto budget = budget_bytes(max_memory), needed = plan.held();
  if (budget == 0 || needed <= budget) return;
  const auto ways = estimate::ways_to_fit(request, estimate::read_model_tensors(model_folder), budget);
  throw ConfigError(fmt::format("--max_memory {}: a rank would hold {} in the {} of a step ({}). {}", max_memory,
                                bytes_text(needed), plan.phase, parts_text(plan),
                                ways.empty() ? "No flags make it fit; more ranks of a host would, or a larger budget"
                                             : "It would fit with\n" + estimate::remedy_lines(ways)),
                    "max_memory");
}

report::MeanOfFiles mean_of_files(comm::Communicator& group) {
  const std::int64_t size = group.size();
  if (size == 1) return {};
  auto region = group.map_shared(size * static_cast<std::int64_t>(sizeof(std::int64_t)));
  if (!region) return {};
  return [region = std::move(region), size, rank = group.rank()](std::int64_t mine) {
    const std::span files(reinterpret_cast<std::int64_t*>(region->data()), static_cast<std::size_t>(size));
    std::atomic_ref<std::int64_t>(files[static_cast<std::size_t>(rank)]).store(mine);
    std::int64_t sum = 0;
    for (auto& one : files) sum += std::atomic_ref<std::int64_t>(one).load();
    return sum / size;
  };
}

std::int64_t room_for_copies(const estimate::RankPlan& plan, const std::string& max_memory,
                             const comm::Communicator& group) {
  const auto budget = budget_bytes(max_memory);
  if (budget == 0) return report::available_memory_bytes() / 2 / ranks_of_host(group);
  return std::max<std::int64_t>(0, budget - plan.held());
}

void report_plan(const estimate::RankPlan& plan, std::int64_t copies, const report::MemoryWatch::Peak& peak,
                 comm::Communicator& group, std::ostream& out) {
  using Json = nlohmann::json;
  const auto& m = peak.memory;
  const Json mine = {{"held", m.proportional_bytes}, {"own", m.anonymous_bytes},
                     {"files", m.file_bytes},        {"shared", m.shared_bytes},
                     {"phase", peak.phase},          {"tensors", tensor::allocator_stats().peak_used_bytes}};
  Json most = mine;
  for (const auto& text : group.all_gather_objects(json_text(mine)))
    if (auto other = Json::parse(text); other["held"] > most["held"]) most = std::move(other);
  const auto size = [&](const char* key) { return bytes_text(most[key].get<std::int64_t>()); };
  const auto planned = plan.held();
  const auto beside = copies > 0 ? fmt::format(" and {} of copies for saves", bytes_text(copies)) : "";
  out << fmt::format(
             "memory: planned {} a rank{}, measured {} at most, in {} ({:.2f}; own {}, of it tensors {}, mapped files "
             "{}, shared between ranks {})\n",
             bytes_text(planned), beside, size("held"), most["phase"].get<std::string>(),
             most["held"].get<double>() / static_cast<double>(planned + copies), size("own"), size("tensors"),
             size("files"), size("shared"))
      << std::flush;
}

void report_device_plan(const estimate::RankPlan& plan, at::Device device, comm::Communicator& group,
                        std::ostream& out) {
  if (plan.parts.empty()) return;
  std::int64_t most = 0;
  for (const auto& text : group.all_gather_objects(std::to_string(tensor::peak_device_bytes(device).value_or(0))))
    most = std::max<std::int64_t>(most, std::atoll(text.c_str()));
  const auto planned = plan.total();
  out << fmt::format("memory of {}: planned {} a rank, measured {} at most ({:.2f})\n",
                     at::DeviceTypeName(device.type(), /*lower_case=*/true), bytes_text(planned), bytes_text(most),
                     static_cast<double>(most) / static_cast<double>(planned))
      << std::flush;
}

void require_kept(const estimate::RankPlan& plan, report::MemoryWatch& watch, const std::string& max_memory,
                  comm::Communicator& group) {
  std::string mine;
  if (watch.over()) {
    const auto peak = watch.peak();
    mine = fmt::format("rank {} held {} in {} (own {}, mapped files {}, shared between ranks {})", group.rank(),
                       bytes_text(peak.memory.proportional_bytes), peak.phase, bytes_text(peak.memory.anonymous_bytes),
                       bytes_text(peak.memory.file_bytes), bytes_text(peak.memory.shared_bytes));
  }
  for (const auto& text : group.all_gather_objects(mine)) {
    if (text.empty()) continue;
    throw Error(
        fmt::format("{}, more than the {} of --max_memory; planned were {} ({}). The run has ended with a checkpoint; "
                    "it goes on from there with --resume_from_checkpoint true and a larger budget or smaller batches",
                    text, max_memory, bytes_text(plan.held()), parts_text(plan)));
  }
}

}  // namespace tessera::tasks
