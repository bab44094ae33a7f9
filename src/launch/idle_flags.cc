#include "launch/idle_flags.h"

namespace tessera::launch {
namespace {

using config::Unused;

constexpr const char* kNoCompiler = "there is no Python to compile";
constexpr const char* kOnTpus = "only launches on TPUs read it";
constexpr const char* kElsewhere = "only launches on Amazon SageMaker read it";

constexpr config::UnusedFlag kIdle[] = {
    {"--monitor_interval", Unused::kNumber, "failures are noticed at once"},
    {"--rdzv_conf", Unused::kText, "machines meet at main_process_ip"},
    {"--no_python", Unused::kBool, "programs are always started as they are"},
    {"--quiet", Unused::kBool, "a failed rank's last lines are all that is shown"},
    {"-q", Unused::kBool, "a failed rank's last lines are all that is shown"},
    {"--use_parallelism_config", Unused::kBool, "the sizes say it"},
    {"--dynamo_mode", Unused::kText, kNoCompiler},
    {"--dynamo_use_fullgraph", Unused::kBool, kNoCompiler},
    {"--dynamo_use_dynamic", Unused::kBool, kNoCompiler},
    {"--dynamo_use_regional_compilation", Unused::kBool, kNoCompiler},
    {"--tpu_cluster", Unused::kBool, kOnTpus},
    {"--tpu_use_sudo", Unused::kBool, kOnTpus},
    {"--vm", Unused::kText, kOnTpus},
    {"--env", Unused::kText, kOnTpus},
    {"--downcast_bf16", Unused::kBool, kOnTpus},
    {"--aws_access_key_id", Unused::kText, kElsewhere},
    {"--aws_secret_access_key", Unused::kText, kElsewhere},
};

constexpr const char* kOtherEngine = "it belongs to another engine; leave it out: --fsdp_sharding_strategy shards";
constexpr const char* kModule = "programs are started as they are; write 'tessera launch ... python -m MODULE'";
constexpr const char* kMpi = "leave it out, and let mpirun start 'tessera TASK' on each rank itself";

constexpr config::RefusedFlag kRefused[] = {
    {"--module", Unused::kBool, kModule},
    {"-m", Unused::kBool, kModule},
    {"--tpu", Unused::kBool, "there is no code for TPUs; leave it out to run on the CPU"},
    {"--use_deepspeed", Unused::kBool, kOtherEngine},
    {"--use_megatron_lm", Unused::kBool, kOtherEngine},
    {"--deepspeed_*", Unused::kText, kOtherEngine},
    {"--megatron_lm_*", Unused::kText, kOtherEngine},
    {"--zero_stage", Unused::kNumber,
     "it belongs to another engine; stage 3 is --fsdp_sharding_strategy FULL_SHARD, stage 2 SHARD_GRAD_OP"},
    {"--zero3_init_flag", Unused::kBool, kOtherEngine},
    {"--zero3_save_16bit_model", Unused::kBool, kOtherEngine},
    {"--offload_optimizer_device", Unused::kText, "--fsdp_offload_folder keeps the optimizer's state on a disk"},
    {"--offload_param_device", Unused::kText, "--fsdp_offload_params and --fsdp_offload_folder say it"},
    {"--offload_optimizer_nvme_path", Unused::kText, "--fsdp_offload_folder names the folder"},
    {"--offload_param_nvme_path", Unused::kText, "--fsdp_offload_folder names the folder"},
    {"--gradient_accumulation_steps", Unused::kNumber, "give it to the task, behind its name", "1"},
    {"--gradient_clipping", Unused::kNumber, "give --max_grad_norm to the task, behind its name"},
    {"--fp8_*", Unused::kText, "there is no code for fp8; leave it out, and use --mixed_precision bf16"},
    {"--mpirun_*", Unused::kText, kMpi},
    {"--fsdp_activation_checkpointing_offload", Unused::kBool,
     "activations are in host memory; --fsdp_activation_checkpointing keeps fewer"},
    {"--parallelism_config_*", Unused::kText, "models are sharded and copied, in no other dimension; leave it out",
     "1"},
};

}  // namespace

void add_idle_flags(config::OptionTable& table) {
  for (const auto& flag : kIdle) table.add_without_effect(flag);
  for (const auto& flag : kRefused) table.add_refused(flag);
}

}  // namespace tessera::launch
