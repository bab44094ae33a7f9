#include "tasks/lora_flags.h"

#include "peft/lora.h"

namespace tessera::tasks {
namespace {

void set_targets(peft::PeftConfig& lora, const std::vector<std::string>& words) {
  const bool regex = words.size() == 1 && words[0].find_first_of("*+?()[]|^$\\") != std::string::npos;
  if (regex) {
    lora.target_regex = words[0];
  } else {
    lora.target_modules = words;
  }
}

}  // namespace

void add_lora_flags(config::OptionTable& table, LoraFlags& f, const std::string& group) {
  table.add(&f.use_peft_lora, {"--use_peft_lora", "--use_peft"}, "train LoRA adapters; false: all weights", group);
  table.add(&f.adapter_name_or_path, {"--adapter_name_or_path"}, "continue from this adapter", group)
      .implies("--use_peft_lora", "true");
  const auto of_new_adapters = [](config::Option& option) -> config::Option& {
    return option.only_with({{"--use_peft_lora", {"true"}}}).idle_with({"--adapter_name_or_path", {config::kSet}});
  };
  of_new_adapters(table.add(&f.lora_r, {"--lora_r"}, "rank", group));
  of_new_adapters(table.add(&f.lora_alpha, {"--lora_alpha"}, "scale is alpha / r", group));
  of_new_adapters(table.add(&f.lora_dropout, {"--lora_dropout"}, "dropout before the adapters", group));
  of_new_adapters(table.add(&f.lora_target_modules, {"--lora_target_modules"},
                            "name suffixes, one regular expression, or all-linear; empty: the family's", group));
  of_new_adapters(table.add(&f.lora_modules_to_save, {"--lora_modules_to_save", "--modules_to_save"},
                            "modules that train whole and are saved with the adapter", group));
  of_new_adapters(table.add(&f.use_rslora, {"--use_rslora"}, "scale by alpha / sqrt(r)", group));
  of_new_adapters(
      table.add(&f.use_dora, {"--use_dora"}, "also train the magnitudes of the adapted weights (DoRA)", group));
  of_new_adapters(table.add(&f.lora_bias, {"--lora_bias"}, "which biases train", group))
      .choices({"none", "all", "lora_only"});
  of_new_adapters(table.add(&f.init_lora_weights, {"--init_lora_weights"}, "initial adapters", group))
      .choices({"true", "gaussian", "false"});
  table.add_without_effect({"--lora_task_type", config::Unused::kText, "the task says it"});
  table.add_refused({"--lora_target_parameters", config::Unused::kText,
                     "adapters sit on modules; name them with --lora_target_modules"});
}

void check_lora_flags(const LoraFlags& f, config::Problems& problems) {
  problems.require(f.lora_r >= 1 || !f.use_peft_lora, "--lora_r must be at least 1", "lora_r");
  problems.require(f.lora_dropout >= 0 && f.lora_dropout < 1, "--lora_dropout must be in [0, 1)", "lora_dropout");
  problems.require(f.use_peft_lora || f.adapter_name_or_path.empty(),
                   "--adapter_name_or_path contradicts --use_peft_lora false: an adapter is trained, or all weights "
                   "are",
                   "adapter_name_or_path");
}

std::shared_ptr<const peft::PeftMethod> lora_config(const LoraFlags& f, const std::string& task_type,
                                                    const std::string& base_model) {
  if (!f.use_peft_lora || !f.adapter_name_or_path.empty()) return nullptr;
  auto made = std::make_shared<peft::Lora>();
  auto& lora = *made;
  lora.r = f.lora_r;
  lora.lora_alpha = f.lora_alpha;
  lora.lora_dropout = f.lora_dropout;
  lora.use_rslora = f.use_rslora;
  lora.use_dora = f.use_dora;
  lora.bias = f.lora_bias;
  lora.init_lora_weights = f.init_lora_weights;
  lora.modules_to_save = f.lora_modules_to_save;
  set_targets(lora, f.lora_target_modules);
  lora.task_type = task_type;
  lora.base_model_name_or_path = base_model;
  return made;
}

}  // namespace tessera::tasks
