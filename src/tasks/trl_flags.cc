#include "tasks/trl_flags.h"

namespace tessera::tasks {
namespace {

using config::Unused;

constexpr config::UnusedFlag kIdleOfTrl[] = {
    {"--use_reentrant", Unused::kBool, "both kinds of checkpointing are the same here"},
    {"--activation_offloading", Unused::kBool, "activations are in host memory; --gradient_checkpointing keeps fewer"},
    {"--trust_remote_code", Unused::kBool, "no code is ever loaded"},
    {"--model_revision", Unused::kText, "a folder has no revisions"},
    {"--ignore_bias_buffers", Unused::kBool, "models here have no such buffers"},
};

constexpr config::RefusedFlag kRefusedOfTrl[] = {
    {"--model_init_kwargs", Unused::kText, "give --attn_implementation by itself, and leave the rest out"},
    {"--router_aux_loss_coef", Unused::kNumber,
     "mixtures of experts train without a loss of their router; leave it out"},
    {"--dataset_config", Unused::kText, "give the folder of that configuration with --dataset_name"},
};

}  // namespace

void add_unused_trl_flags(config::OptionTable& table) {
  for (const auto& flag : kIdleOfTrl) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfTrl) table.add_refused(flag);
}

}  // namespace tessera::tasks
