#pragma once
// What a rank of a job will hold (estimate/rank_memory.h), from its modules before they have memory; and the budget
// that --max_memory gives it.
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "estimate/plan_request.h"
#include "report/memory_watch.h"
#include "tasks/assemble.h"

namespace tessera::tasks {

struct PlanSettings {
  std::string model_folder;
  std::string optim, optim_args = "";
  std::vector<std::string> optim_target_modules = {};
  estimate::BatchShape batch = {};  // without checkpointing: that is in the options of sharding
};

/// Of the ranks of `group`, as many on each.
int hosts_of(const comm::Communicator& group);

/// Of a model that is to be sharded by these options: host memory. Activations are counted as far as `batch` says their
/// size.
estimate::RankPlan plan_rank(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                             const comm::Communicator& group);

/// Of the same rank's memory on FsdpOptions::device; empty where that is the CPU.
estimate::RankPlan plan_device(const Assembled& model, const fsdp::FsdpOptions& fsdp, const PlanSettings& settings,
                               const comm::Communicator& group);

/// A method's settings as its formulas take them (estimate/adapter_formulas.h).
std::map<std::string, std::string> formula_settings(const peft::PeftMethod& method);

/// The bytes of --max_memory; 0: there is no budget.
std::int64_t budget_bytes(const std::string& max_memory);

/// ConfigError when the plan, program included, is more than the budget: with its parts, and the flags with which
/// `request`, the same job by its flags, would fit.
void require_fit(const estimate::RankPlan& plan, const estimate::PlanRequest& request, const std::string& model_folder,
                 const std::string& max_memory);

/// Collective; for the watches of the ranks. Empty on several hosts, which share no memory to say it in.
report::MeanOfFiles mean_of_files(comm::Communicator& group);

/// What a rank may copy for a save in the background: what the budget leaves beside the plan, else half of its share of
/// the memory that the host has free now.
std::int64_t room_for_copies(const estimate::RankPlan& plan, const std::string& max_memory,
                             const comm::Communicator& group);

/// Collective: "memory: planned 1.2 GiB a rank, measured 1.1 GiB ..." of the rank that held the most. copies: for
/// saves, on top of the plan.
void report_plan(const estimate::RankPlan& plan, std::int64_t copies, const report::MemoryWatch::Peak& peak,
                 comm::Communicator& group, std::ostream& out);

/// Collective: the same of the devices, in one line; nothing where `plan` is empty.
void report_device_plan(const estimate::RankPlan& plan, at::Device device, comm::Communicator& group,
                        std::ostream& out);

/// Collective: Error on every rank where one of them held more than the budget; the run has ended for that.
void require_kept(const estimate::RankPlan& plan, report::MemoryWatch& watch, const std::string& max_memory,
                  comm::Communicator& group);

}  // namespace tessera::tasks
