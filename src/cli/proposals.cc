#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bounded_json.h"
#include "base/cpu_level.h"
#include "base/file.h"
#include "base/grouped.h"
#include "base/open_file.h"
#include "base/quantity_text.h"
#include "cli/questionnaire.h"
#include "estimate/plan_request.h"
#include "families/layer_classes.h"
#include "hub/model_folder.h"
#include "launch/cores.h"
#include "launch/gpus.h"
#include "report/memory.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr estimate::BatchShape kPlannedBatch = {.rows = 1, .length = 512};

struct PlannedJob {
  const char* name;
  estimate::PlanRequest request;
};

/// From the job that needs most to the one that needs least.
std::vector<PlannedJob> planned_jobs(const Proposals& p, const std::vector<estimate::ModelTensor>& tensors) {
  estimate::PlanRequest all;
  all.ranks = p.num_processes;
  all.mixed_precision = p.mixed_precision;
  all.batch = kPlannedBatch;
  estimate::PlanRequest lora = all;
  lora.adapter.emplace();
  estimate::PlanRequest packed = lora;
  packed.packed = {.bits = 4, .double_quant = true};
  std::vector<PlannedJob> jobs = {
      {"all weights", all}, {"LoRA", lora}, {"LoRA over 4-bit weights (--load_in_4bit true)", packed}};
  std::erase_if(jobs, [&](const PlannedJob& job) { return !job.request.possible(tensors); });
  return jobs;
}

std::int64_t planned_bytes(const estimate::PlanRequest& request, const std::vector<estimate::ModelTensor>& tensors) {
  return estimate::plan_for(request, tensors).held();
}

/// `model`: as the user named it. What fits into a rank's share of the memory; recomputed activations are proposed
/// where nothing fits without.
void plan_model(const std::string& model, const std::string& folder, Proposals& p) {
  const auto tensors = estimate::read_model_tensors(folder);
  const std::int64_t available = report::available_memory_bytes(), share = available / p.num_processes;
  std::int64_t numel = 0;
  for (const auto& tensor : tensors) numel += tensor.numel();
  p.notes.push_back(fmt::format("{}: {} parameters; {} of memory available, {} for each of {} ranks", model,
                                grouped(numel), bytes_text(available), bytes_text(share), p.num_processes));
  bool any_fits = false, any_fits_recomputed = false;
  for (PlannedJob& job : planned_jobs(p, tensors)) {
    const std::int64_t plain = planned_bytes(job.request, tensors);
    job.request.batch.checkpointing = true;
    const std::int64_t recomputed = planned_bytes(job.request, tensors);
    any_fits = any_fits || plain <= share;
    any_fits_recomputed = any_fits_recomputed || recomputed <= share;
    p.notes.push_back(fmt::format("  {}: {} a rank{}", job.name, bytes_text(plain),
                                  plain <= share        ? ", fits"
                                  : recomputed <= share ? ", fits with activation checkpointing"
                                                        : ", does not fit"));
  }
  p.activation_checkpointing = !any_fits && any_fits_recomputed;
  p.notes.push_back(fmt::format("  (rows of {} tokens, one at a time; 'tessera estimate {}' has the parts)",
                                kPlannedBatch.length, model));
}

/// "LlamaDecoderLayer"; empty where there is no config.json (a GGUF file).
std::string layer_classes(const std::string& folder) {
  const std::string file = folder + "/config.json";
  if (!std::filesystem::is_directory(folder) || !is_there(file)) return {};
  const auto json = nlohmann::json::parse(bounded_json(read_text_file(file), file), nullptr, false);
  if (json.is_discarded()) throw DataError("'" + file + "' is not JSON", file);
  return fmt::format("{}", fmt::join(families::no_split_classes(families::parse_config(json, file)), ","));
}

}  // namespace

Proposals propose(const std::string& model) {
  Proposals p;
  p.has_gpu = launch::has_gpu();
  const auto cores = static_cast<int>(launch::usable_cpus().size());
  p.num_processes = std::min(2, cores);
  const auto bfloat16 = native_bfloat16();
  p.mixed_precision = bfloat16.empty() ? "no" : "bf16";
  p.notes.push_back(fmt::format("this machine: {} cores, {}, {}", cores, p.has_gpu ? "a GPU" : "no GPU",
                                bfloat16.empty() ? "no bfloat16 products (bf16 would save memory, not time)"
                                                 : "bfloat16 products (" + bfloat16.front() + ")"));
  if (model.empty()) return p;
  const std::string folder = hub::find_model(model, hub::ModelParts::kSettings).folder;
  p.layer_classes = layer_classes(folder);
  plan_model(model, folder, p);
  return p;
}

}  // namespace tessera::cli
