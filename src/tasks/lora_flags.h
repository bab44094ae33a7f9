#pragma once
// The flags of adapters that the training tasks share, and the method that they mean.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/options.h"
#include "peft/method.h"

namespace tessera::tasks {

struct LoraFlags {
  std::string adapter_name_or_path;  // start from this adapter
  bool use_peft_lora = true;
  std::string peft_type = "LORA";
  std::string peft_args;    // further keys of the method: "r=4, alpha=8, token_indices=[5, 9]"
  std::string peft_config;  // a file of the method's settings; then no other flag gives them
  std::vector<std::string> target_modules, feedforward_modules;  // as lora_target_modules, of any method
  std::int64_t num_virtual_tokens = 0;
  std::string prompt_tuning_init = "RANDOM", prompt_tuning_init_text;
  std::int64_t lora_r = 8;
  double lora_alpha = 32, lora_dropout = 0.1;
  std::vector<std::string> lora_target_modules;  // name suffixes, all-linear, or one regular expression
  bool use_rslora = false, use_dora = false;
  std::string lora_bias = "none", init_lora_weights = "true";
  bool convert_to_lora = false;  // of PiSSA and OLoRA, when they are saved
  std::vector<std::string> lora_modules_to_save;
};

/// With the values of `flags` as the defaults.
void add_lora_flags(config::OptionTable& table, LoraFlags& flags, const std::string& group);
/// --adapters, of tasks that train one adapter at a time.
void refuse_adapter_list(config::OptionTable& table);
/// Flags that are keys of the configuration of --peft_type's method and no flags of their own (`--alpha 8`), gathered
/// in one --peft_args.
std::vector<std::string> with_method_keys(const std::vector<std::string>& args);
/// Values out of range and contradictions.
void check_lora_flags(const LoraFlags& flags, config::Problems& problems);
/// A new adapter's method; none when all weights are trained or an adapter is gone on with. base_model: as the user
/// names it; its tokenizer reads the text of a prompt.
std::shared_ptr<const peft::PeftMethod> new_adapter(const LoraFlags& flags, const std::string& task_type,
                                                    const std::string& base_model);

}  // namespace tessera::tasks
