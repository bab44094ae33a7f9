// Which flags make a job fit: all sets of changes are planned, and of those that fit the smallest are told.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/quantity_text.h"
#include "estimate/plan_request.h"

namespace tessera::estimate {
namespace {

struct Change {
  std::function<std::string(const PlanRequest&)> flag;
  std::function<bool(const PlanRequest&)> helps;  // the flag is not set already
  std::function<void(PlanRequest&)> apply;
};

Change flag(const char* text, std::function<bool(const PlanRequest&)> helps, std::function<void(PlanRequest&)> apply) {
  return {[text](const PlanRequest&) { return std::string(text); }, std::move(helps), std::move(apply)};
}

/// What costs the least speed, or changes the result the least, first.
const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      flag(
          "--bf16 true", [](const auto& r) { return r.mixed_precision == "no"; },
          [](auto& r) { r.mixed_precision = "bf16"; }),
      flag(
          "fsdp_sharding_strategy: FULL_SHARD",
          [](const auto& r) { return r.strategy != config::ShardingStrategy::kFullShard; },
          [](auto& r) { r.strategy = config::ShardingStrategy::kFullShard; }),
      flag(
          "--sync_each_batch true", [](const auto& r) { return r.batch.accumulation == Accumulation::kUnsharded; },
          [](auto& r) { r.batch.accumulation = Accumulation::kSharded; }),
      flag(
          "--gradient_checkpointing true",
          [](const auto& r) { return r.batch.length > 0 && r.batch.checkpointing == 0; },
          [](auto& r) { r.batch.checkpointing = 1; }),
      {[](const PlanRequest& r) {
         return fmt::format("--per_device_train_batch_size 1 (and {} times the --gradient_accumulation_steps)",
                            r.batch.rows);
       },
       [](const PlanRequest& r) { return r.batch.rows > 1 && r.batch.length > 0; },
       [](PlanRequest& r) {
         if (r.batch.accumulation == Accumulation::kNone)
           r.batch.accumulation = accumulation_of(r.batch.rows, /*sync_each_batch=*/false, r.ranks);
         r.batch.rows = 1;
       }},
      flag(
          "--optim adamw_8bit", [](const auto& r) { return !r.adapter && r.optim.find("8bit") == std::string::npos; },
          [](auto& r) { r.optim = "adamw_8bit"; }),
      flag(
          "fsdp_offload_folder: DISK_FOLDER", [](const auto& r) { return !r.on_disk; },
          [](auto& r) { r.on_disk = true; }),
      {[](const PlanRequest&) {
         return fmt::format("--use_peft_lora true --lora_r {} --lora_target_modules all-linear",
                            AdapterRequest().lora_r);
       },
       [](const PlanRequest& r) { return !r.adapter; }, [](PlanRequest& r) { r.adapter.emplace(); }},
      {[](const PlanRequest& r) {
         return fmt::format("{}--load_in_4bit true --use_nested_quant true", r.packed ? "--load_in_8bit false " : "");
       },
       [](const PlanRequest& r) { return !r.packed || r.packed->bits == 8; },
       [](PlanRequest& r) { r.packed = {.bits = 4, .double_quant = true}; }},
  };
  return all;
}

bool is_subset(std::uint32_t a, std::uint32_t b) {
  return (a & b) == a;
}

/// The earlier a change, the less it weighs; each weighs more than all before it together.
bool fewer_or_cheaper(std::uint32_t a, std::uint32_t b) {
  const auto count = [](std::uint32_t set) { return __builtin_popcount(set); };
  return count(a) != count(b) ? count(a) < count(b) : a < b;
}

}  // namespace

std::vector<Remedy> ways_to_fit(const PlanRequest& request, const std::vector<ModelTensor>& tensors,
                                std::int64_t budget_bytes) {
  constexpr std::size_t kMost = 3;
  std::vector<const Change*> useful;
  const bool is_packed = std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.packed_bytes > 0; });
  for (const auto& change : changes()) {
    auto changed = request;
    change.apply(changed);
    if (change.helps(request) && !(is_packed && changed.packed != request.packed)) useful.push_back(&change);
  }
  std::vector<std::uint32_t> sets((std::size_t{1} << useful.size()) - 1);
  for (std::size_t i = 0; i < sets.size(); ++i) sets[i] = static_cast<std::uint32_t>(i + 1);
  std::sort(sets.begin(), sets.end(), fewer_or_cheaper);
  std::vector<std::uint32_t> found;
  std::vector<Remedy> remedies;
  for (const auto set : sets) {
    if (remedies.size() == kMost) break;
    if (std::any_of(found.begin(), found.end(), [&](std::uint32_t smaller) { return is_subset(smaller, set); }))
      continue;
    auto changed = request;
    Remedy remedy;
    for (std::size_t i = 0; i < useful.size(); ++i) {
      if (!(set >> i & 1)) continue;
      remedy.flags.push_back(useful[i]->flag(changed));
      useful[i]->apply(changed);
    }
    if (!changed.possible(tensors)) continue;
    remedy.bytes = plan_for(changed, tensors).held();
    if (remedy.bytes > budget_bytes) continue;
    found.push_back(set);
    remedies.push_back(std::move(remedy));
  }
  return remedies;
}

std::string remedy_lines(const std::vector<Remedy>& remedies) {
  std::string out;
  for (const auto& r : remedies) out += fmt::format("  {}: {}\n", fmt::join(r.flags, "  "), bytes_text(r.bytes));
  return out;
}

}  // namespace tessera::estimate
