#include "train/idle_arguments.h"

#include <algorithm>

namespace tessera::train {
namespace {

using config::Unused;

constexpr config::UnusedFlag kIdle[] = {
    {"--dataloader_num_workers", Unused::kNumber, "batches are cut from a mapped file; no worker processes are needed"},
    {"--dataloader_prefetch_factor", Unused::kNumber, "batches are cut from a mapped file"},
    {"--dataloader_pin_memory", Unused::kBool, "there is no copy to a device"},
    {"--dataloader_persistent_workers", Unused::kBool, "there are no worker processes"},
    {"--dataloader_multiprocessing_context", Unused::kText, "there are no worker processes"},
    {"--dataloader_in_order", Unused::kBool, "there are no worker processes"},
    {"--ddp_static_graph", Unused::kBool, "units are gathered as they come"},
    {"--ddp_backend", Unused::kText, "the launcher chooses how ranks communicate"},
    {"--ddp_timeout", Unused::kNumber, "a lost rank is noticed within a second"},
    {"--ddp_find_unused_parameters", Unused::kBool, "unused parameters need no search"},
    {"--ddp_bucket_cap_mb", Unused::kNumber, "units are the buckets"},
    {"--ddp_broadcast_buffers", Unused::kBool, "models here have no buffers that change"},
    {"--local_rank", Unused::kNumber, "the launcher says which rank this is"},
    {"--use_ipex", Unused::kBool, "kernels for this processor are built in"},
    {"--jit_mode_eval", Unused::kBool, "nothing is traced"},
    {"--torch_compile", Unused::kBool, "kernels are fused already"},
    {"--torch_compile_backend", Unused::kText, "kernels are fused already"},
    {"--torch_compile_mode", Unused::kText, "kernels are fused already"},
    {"--torchdynamo", Unused::kText, "kernels are fused already"},
    {"--tpu_num_cores", Unused::kNumber, "there is no code for TPUs"},
    {"--tpu_metrics_debug", Unused::kBool, "there is no code for TPUs"},
    {"--debug", Unused::kList, "a loss that is not finite ends the run and names the module it came from"},
    {"--remove_unused_columns", Unused::kBool, "only the columns that are needed are read"},
    {"--label_names", Unused::kList, "the labels are known"},
    {"--group_by_length", Unused::kBool, "rows without padding make it needless"},
    {"--length_column_name", Unused::kText, "lengths are counted"},
    {"--skip_memory_metrics", Unused::kBool, "memory is always reported"},
    {"--auto_find_batch_size", Unused::kBool, "the batch size stays as given"},
    {"--average_tokens_across_devices", Unused::kBool, "the loss is always the mean over the tokens of all ranks"},
    {"--include_tokens_per_second", Unused::kBool, "always measured"},
    {"--include_num_input_tokens_seen", Unused::kMaybeText, "always counted"},
    {"--use_liger_kernel", Unused::kBool, "kernels are fused already"},
    {"--liger_kernel_config", Unused::kText, "kernels are fused already"},
    {"--torch_empty_cache_steps", Unused::kNumber, "memory is reused"},
    {"--bf16_full_eval", Unused::kBool, "evaluation computes as training does (--bf16)"},
    {"--fp16_full_eval", Unused::kBool, "evaluation computes as training does (--fp16)"},
    {"--eval_accumulation_steps", Unused::kNumber, "predictions are not kept"},
    {"--eval_do_concat_batches", Unused::kBool, "predictions are not kept"},
    {"--eval_use_gather_object", Unused::kBool, "predictions are not kept"},
    {"--batch_eval_metrics", Unused::kBool, "metrics are always added up by batches"},
    {"--prediction_loss_only", Unused::kBool, "evaluation computes losses"},
    {"--include_inputs_for_metrics", Unused::kBool, "the metrics are fixed"},
    {"--include_for_metrics", Unused::kList, "the metrics are fixed"},
    {"--use_legacy_prediction_loop", Unused::kBool, "of an older library"},
    {"--past_index", Unused::kNumber, "no model here carries a state from batch to batch"},
    {"--use_cache", Unused::kBool, "training keeps no keys and values; generation does"},
    {"--enable_jit_checkpoint", Unused::kBool, "SIGTERM always ends a run with a checkpoint"},
    {"--save_safetensors", Unused::kBool, "always"},
    {"--save_on_each_node", Unused::kBool, "ranks of one machine share a folder"},
    {"--restore_callback_states_from_checkpoint", Unused::kBool, "always"},
    {"--logging_nan_inf_filter", Unused::kBool, "--nan_policy says what happens at a loss that is not finite"},
    {"--log_level", Unused::kText, "what is said is always the same; --disable_tqdm turns progress bars off"},
    {"--log_level_replica", Unused::kText, "other ranks speak up in errors only"},
    {"--log_on_each_node", Unused::kBool, "rank 0 logs"},
    {"--run_name", Unused::kText, "a name for services that runs are not reported to"},
    {"--project", Unused::kText, "a name for services that runs are not reported to"},
    {"--trackio_space_id", Unused::kText, "a name for services that runs are not reported to"},
    {"--trackio_bucket_id", Unused::kText, "a name for services that runs are not reported to"},
    {"--trackio_static_space_id", Unused::kText, "a name for services that runs are not reported to"},
    {"--ray_scope", Unused::kText, "there is no search for hyperparameters"},
    {"--mp_parameters", Unused::kText, "of another launcher"},
    {"--fp16_opt_level", Unused::kText, "of an older library"},
    {"--fp16_backend", Unused::kText, "precision comes from --bf16, --fp16 or the launcher"},
    {"--half_precision_backend", Unused::kText, "precision comes from --bf16, --fp16 or the launcher"},
    {"--ignore_data_skip", Unused::kBool, "continuing costs no time in the data"},
    {"--dispatch_batches", Unused::kBool, "every rank cuts its own rows"},
    {"--split_batches", Unused::kBool, "batch sizes are per rank"},
};

constexpr const char* kToTheLauncher =
    "the launcher says how a model is sharded: its file, or flags such as 'tessera launch --fsdp_sharding_strategy "
    "FULL_SHARD'; leave it out";

constexpr config::RefusedFlag kRefused[] = {
    {"--do_predict", Unused::kBool,
     "there is no third split; 'tessera generate' answers prompts with what was trained"},
    {"--deepspeed", Unused::kText, "it belongs to another engine; leave it out: FULL_SHARD is its stage 3"},
    {"--fsdp", Unused::kText, kToTheLauncher},
    {"--fsdp_config", Unused::kText, kToTheLauncher},
    {"--fsdp_min_num_params", Unused::kNumber, kToTheLauncher},
    {"--fsdp_transformer_layer_cls_to_wrap", Unused::kText, kToTheLauncher},
    {"--accelerator_config", Unused::kText,
     "batch sizes are per rank, and every rank cuts its own rows; leave it out (--sync_each_batch is a flag here)"},
    {"--parallelism_config", Unused::kText, kToTheLauncher},
    {"--use_mps_device", Unused::kBool, "there is no code for such devices; leave it out to compute on the CPU"},
};

}  // namespace

void add_idle_training_arguments(config::OptionTable& table) {
  const auto known = table.names();
  const auto is_new = [&](const char* name) { return std::find(known.begin(), known.end(), name) == known.end(); };
  for (const auto& flag : kIdle)
    if (is_new(flag.name)) table.add_without_effect(flag);
  for (const auto& flag : kRefused)
    if (is_new(flag.name)) table.add_refused(flag);
}

}  // namespace tessera::train
