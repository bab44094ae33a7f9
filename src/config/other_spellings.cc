#include "config/other_spellings.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/nearest.h"
#include "config/accelerate_input.h"

namespace tessera::config {
namespace {

struct Spelling {
  std::string_view theirs, ours;
};

constexpr Spelling kSpellings[] = {
    {"nproc_per_node", "num_processes"},
    {"nnodes", "num_machines"},
    {"node_rank", "machine_rank"},
    {"master_addr", "main_process_ip"},
    {"master_port", "main_process_port"},
    {"base_model", "model_name_or_path"},
    {"dataset", "dataset_name"},
    {"dataset_dir", "dataset_name"},
    {"task_name", "dataset_name"},
    {"train_file", "dataset_name"},
    {"block_size", "max_seq_length"},
    {"cutoff_len", "max_seq_length"},
    {"preprocessing_num_workers", "dataset_num_proc"},
    {"val_size", "test_split_size"},
    {"val_set_size", "test_split_size"},
    {"validation_split", "test_split_size"},
    {"max_samples", "max_train_samples"},
    {"max_samples", "max_steps"},
    {"quantization_bit", "load_in_4bit"},
    {"resume", "resume_from_checkpoint"},
    {"sequence_len", "max_seq_length"},
    {"micro_batch_size", "per_device_train_batch_size"},
    {"lora_rank", "lora_r"},
    {"finetuning_type", "use_peft_lora"},
    {"adapter", "use_peft_lora"},
    {"template", "chat_template_path"},
    {"model", "tokenizer"},
    {"model_name_or_path", "tokenizer"},
    {"load_in_4bit", "type"},
    {"load_in_8bit", "type"},
};

/// Of `tessera launch`, beside what accelerate's file says, too.
constexpr std::string_view kLaunchFlags[] = {"config_file",
                                             "accelerate_config",
                                             "num_cpu_threads_per_process",
                                             "multi_gpu",
                                             "log_dir",
                                             "max_restarts",
                                             "grace_period",
                                             "tee",
                                             "role",
                                             "parallelism_config_dp_replicate_size",
                                             "parallelism_config_dp_shard_size"};

}  // namespace

bool is_launch_flag(const std::string& name) {
  if (std::find(std::begin(kLaunchFlags), std::end(kLaunchFlags), name) != std::end(kLaunchFlags)) return true;
  static AccelerateInput input;
  static const OptionTable table = [] {
    OptionTable flags("tessera launch", "");
    add_accelerate_options(flags, input);
    return flags;
  }();
  return table.find(name) != nullptr;
}

std::string meant_by(const std::string& flag, const std::vector<std::string>& known) {
  std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [theirs, ours] : kSpellings) {
    if (name != theirs) continue;
    const std::string candidate = "--" + std::string(ours);
    if (std::find(known.begin(), known.end(), candidate) != known.end()) return " (did you mean '" + candidate + "'?)";
  }
  if (is_launch_flag(name)) return " (a flag of 'tessera launch', which stands before the task)";
  return did_you_mean("--" + name, known);
}

}  // namespace tessera::config
