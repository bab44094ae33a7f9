#include "cli/questionnaire.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace tessera::cli {
namespace {

using Answers = nlohmann::json;
using Choices = std::vector<std::string>;

constexpr std::int64_t kMostMachines = 1024;  // each is a line of a menu

enum class Machine : std::size_t { kOne, kCpus, kGpus };

std::string chosen(Questions& q, const std::string& question, const Choices& choices, std::size_t proposed = 0) {
  return choices[q.choose(question, choices, proposed)];
}

void ask_machines(Questions& q, Answers& a) {
  const auto machines = q.number("How many different machines will you use (use more than 1 for multi-node training)?",
                                 1, 1, kMostMachines);
  a["num_machines"] = machines;
  if (machines > 1) {
    Choices ranks;
    for (std::int64_t i = 0; i < machines; ++i) ranks.push_back(std::to_string(i));
    a["machine_rank"] = q.choose("What is the rank of this machine?", ranks, 0);
    a["main_process_ip"] = q.text("What is the IP address of the machine that will host the main process?", "");
    a["main_process_port"] =
        q.number("What is the port you will use to communicate with the main process?", 29500, 0, 65535);
    a["same_network"] = q.yes_no(
        "Are all the machines on the same local network? Answer `no` if nodes are on the cloud and/or on different "
        "network hosts",
        true);
    if (!a["same_network"])
      a["rdzv_backend"] = q.text("What rendezvous backend will you use? ('static', 'c10d', ...)", "static");
  }
  a["debug"] = q.yes_no(
      "Should distributed operations be checked while running for errors? This can avoid timeout issues but will be "
      "slower.",
      false);
}

void ask_wrapping(Questions& q, const Proposals& p, Answers& f) {
  f["fsdp_auto_wrap_policy"] =
      chosen(q, "What should be your auto wrap policy?", {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
  if (f["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP") {
    const bool by_model =
        q.yes_no("Do you want to use the model's `_no_split_modules` to wrap.", p.layer_classes.empty());
    if (by_model) return;
    f["fsdp_transformer_layer_cls_to_wrap"] = q.text(
        "Specify the comma-separated list of transformer layer class names (case-sensitive) to wrap, e.g. "
        "`BertLayer`, `GPTJBlock`, `T5Block`",
        p.layer_classes);
  } else if (f["fsdp_auto_wrap_policy"] == "SIZE_BASED_WRAP") {
    f["fsdp_min_num_params"] =
        q.number("What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
                 100'000'000, 0, std::numeric_limits<std::int64_t>::max());
  }
}

Answers ask_fsdp(Questions& q, const Proposals& p) {
  Answers f;
  const std::size_t version = 1 + q.choose("What should be your FSDP version?", {"1", "2"}, 1);
  f["fsdp_version"] = version;
  if (version == 1) {
    f["fsdp_reshard_after_forward"] =
        chosen(q, "What should be your sharding strategy?",
               {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
  } else {
    f["fsdp_reshard_after_forward"] = q.yes_no("Do you want to enable resharding after forward?", true);
  }
  f["fsdp_offload_params"] = q.yes_no("Do you want to offload parameters and gradients to CPU?", false);
  ask_wrapping(q, p, f);
  if (version == 1)
    f["fsdp_backward_prefetch"] = chosen(q, "What should be your FSDP's backward prefetch policy?",
                                         {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
  const Choices types = version == 1 ? Choices{"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}
                                     : Choices{"SHARDED_STATE_DICT", "FULL_STATE_DICT"};
  f["fsdp_state_dict_type"] = chosen(q, "What should be your FSDP's state dict type?", types);
  if (version == 1) {
    f["fsdp_forward_prefetch"] = q.yes_no("Do you want to enable FSDP's forward prefetch policy?", false);
    f["fsdp_use_orig_params"] = q.yes_no("Do you want to enable FSDP's `use_orig_params` feature?", true);
  }
  f["fsdp_cpu_ram_efficient_loading"] = q.yes_no("Do you want to enable CPU RAM efficient model loading?", true);
  if (version == 1)
    f["fsdp_sync_module_states"] =
        f["fsdp_cpu_ram_efficient_loading"] ||
        q.yes_no(
            "Do you want each individually wrapped FSDP unit to broadcast module parameters from rank 0 at the start?",
            true);
  f["fsdp_activation_checkpointing"] =
      q.yes_no("Do you want to enable FSDP activation checkpointing?", p.activation_checkpointing);
  return f;
}

Answers ask_parallelism(Questions& q) {
  if (!q.yes_no("Do you want to use the parallelism config?", false)) return nullptr;
  return {{"parallelism_config_dp_replicate_size", q.number("What is the data parallelism replicate size?", 1, 1)},
          {"parallelism_config_dp_shard_size", q.number("What is the FSDP shard size?", 1, 1)},
          {"parallelism_config_tp_size", 1},
          {"parallelism_config_cp_size", 1}};
}

/// Keys that every file of accelerate has.
Answers begun(Machine machine) {
  return {{"compute_environment", "LOCAL_MACHINE"},
          {"debug", false},
          {"distributed_type", machine == Machine::kOne    ? "NO"
                               : machine == Machine::kCpus ? "MULTI_CPU"
                                                           : "MULTI_GPU"},
          {"downcast_bf16", "no"},
          {"enable_cpu_affinity", false},
          {"machine_rank", 0},
          {"main_training_function", "main"},
          {"num_machines", 1},
          {"num_processes", 1},
          {"rdzv_backend", "static"},
          {"same_network", true},
          {"tpu_env", Answers::array()},
          {"tpu_use_cluster", false},
          {"tpu_use_sudo", false},
          {"use_cpu", machine == Machine::kCpus}};
}

}  // namespace

nlohmann::json ask_for_config(Questions& q, const Proposals& p) {
  const Machine machine =
      static_cast<Machine>(q.choose("Which type of machine are you using?",
                                    {"No distributed training", "multi-CPU", "multi-GPU"}, p.has_gpu ? 2 : 1));
  Answers a = begun(machine);
  if (machine != Machine::kOne) ask_machines(q, a);
  if (machine == Machine::kOne)
    a["use_cpu"] = q.yes_no("Do you want to run your training on CPU only (even if a GPU is available)?", !p.has_gpu);
  const bool shards = machine != Machine::kOne && q.yes_no("Do you want to use FullyShardedDataParallel?", true);
  if (shards) {
    a["distributed_type"] = "FSDP";
    a["fsdp_config"] = ask_fsdp(q, p);
    if (a["fsdp_config"]["fsdp_version"] == 2) a["parallelism_config"] = ask_parallelism(q);
  }
  if (machine != Machine::kOne) {
    const std::int64_t lowest = a["num_machines"];
    a["num_processes"] = q.number(fmt::format("How many {} should be used for distributed training?",
                                              machine == Machine::kCpus ? "processes" : "GPU(s)"),
                                  std::max<std::int64_t>(lowest, p.num_processes * lowest), lowest);
  }
  const bool plain_gpus = !shards && !a["use_cpu"];
  if (plain_gpus) {
    a["gpu_ids"] =
        q.text("What GPU(s) (by id) should be used for training on this machine as a comma-separated list?", "all");
    a["enable_cpu_affinity"] =
        q.yes_no("Would you like to enable numa efficiency? (Currently only supported on NVIDIA hardware).", false);
  }
  const Choices precisions = {"no", "fp16", "bf16"};
  const auto proposed = std::find(precisions.begin(), precisions.end(), p.mixed_precision) - precisions.begin();
  a["mixed_precision"] =
      chosen(q, "Do you wish to use mixed precision?", precisions, static_cast<std::size_t>(proposed));
  return a;
}

}  // namespace tessera::cli
