#include "tasks/lora_flags.h"

#include <nlohmann/json.hpp>

#include "families/model_folder.h"
#include "peft/adapter_config.h"
#include "peft/prompt_tuning.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

/// A list of names, or one regular expression.
json names(const std::vector<std::string>& words) {
  const bool regex = words.size() == 1 && words[0].find_first_of("*+?()[]|^$\\") != std::string::npos;
  return regex ? json(words[0]) : json(words);
}

/// The flags as the keys of adapter_config.json, of whatever method: it takes its own.
json settings(const LoraFlags& f) {
  json keys = {{"peft_type", f.peft_type},
               {"r", f.lora_r},
               {"lora_alpha", f.lora_alpha},
               {"lora_dropout", f.lora_dropout},
               {"use_rslora", f.use_rslora},
               {"use_dora", f.use_dora},
               {"init_lora_weights", f.init_lora_weights},
               {"modules_to_save", f.lora_modules_to_save},
               {"num_virtual_tokens", f.num_virtual_tokens},
               {"prompt_tuning_init", f.prompt_tuning_init},
               {"prompt_tuning_init_text", f.prompt_tuning_init_text}};
  if (f.peft_type == "LORA") keys["bias"] = f.lora_bias;
  if (f.peft_type != "LORA") keys.erase("r");  // --lora_r is LoRA's
  const auto& targets = f.target_modules.empty() && f.peft_type == "LORA" ? f.lora_target_modules : f.target_modules;
  if (!targets.empty()) keys["target_modules"] = names(targets);
  if (!f.feedforward_modules.empty()) keys["feedforward_modules"] = names(f.feedforward_modules);
  return keys;
}

void read_prompt_text(peft::PromptTuning& method) {
  if (method.prompt_tuning_init != "TEXT") return;
  auto& tokenizer = method.tokenizer_name_or_path;
  if (tokenizer.empty()) tokenizer = method.base_model_name_or_path;
  const auto ids =
      text::open_tokenizer(families::find_model_folder(tokenizer))->encode(method.prompt_tuning_init_text).ids;
  method.init_token_ids.assign(ids.begin(), ids.end());
}

}  // namespace

void add_lora_flags(config::OptionTable& table, LoraFlags& f, const std::string& group) {
  table.add(&f.use_peft_lora, {"--use_peft_lora", "--use_peft"}, "train LoRA adapters; false: all weights", group);
  table.add(&f.adapter_name_or_path, {"--adapter_name_or_path"}, "continue from this adapter", group)
      .implies("--use_peft_lora", "true");
  const auto of_new_adapters = [](config::Option& option) -> config::Option& {
    return option.only_with({{"--use_peft_lora", {"true"}}})
        .idle_with({"--adapter_name_or_path", {config::kSet}})
        .idle_with({"--peft_config", {config::kSet}});
  };
  of_new_adapters(table.add(&f.peft_type, {"--peft_type"}, "method of the adapters", group))
      .choices(peft::method_types());
  table
      .add(&f.peft_config, {"--peft_config"}, "a file like adapter_config.json with the method and its settings", group)
      .placeholder("FILE")
      .only_with({{"--use_peft_lora", {"true"}}})
      .idle_with({"--adapter_name_or_path", {config::kSet}});
  of_new_adapters(table.add(&f.target_modules, {"--target_modules"},
                            "name suffixes, one regular expression, or all-linear; empty: the family's", group));
  of_new_adapters(table.add(&f.feedforward_modules, {"--feedforward_modules"},
                            "IA3: the targets whose inputs are scaled; empty: the family's", group))
      .only_with({{"--peft_type", {"IA3"}}});
  const auto of_prompts = [&](config::Option& option) -> config::Option& {
    return of_new_adapters(option).only_with({{"--peft_type", {"PROMPT_TUNING"}}});
  };
  of_prompts(table.add(&f.num_virtual_tokens, {"--num_virtual_tokens"}, "length of the prompt", group));
  of_prompts(table.add(&f.prompt_tuning_init, {"--prompt_tuning_init"}, "initial prompt", group))
      .choices({"RANDOM", "SAMPLE_VOCAB", "TEXT"});
  of_prompts(table.add(&f.prompt_tuning_init_text, {"--prompt_tuning_init_text"}, "text of the initial prompt", group));
  const auto of_lora = [&](config::Option& option) -> config::Option& {
    return of_new_adapters(option).only_with({{"--peft_type", {"LORA"}}});
  };
  of_lora(table.add(&f.lora_r, {"--lora_r"}, "rank", group));
  of_lora(table.add(&f.lora_alpha, {"--lora_alpha"}, "scale is alpha / r", group));
  of_lora(table.add(&f.lora_dropout, {"--lora_dropout"}, "dropout before the adapters", group));
  of_lora(table.add(&f.lora_target_modules, {"--lora_target_modules"},
                    "name suffixes, one regular expression, or all-linear; empty: the family's", group));
  of_new_adapters(table.add(&f.lora_modules_to_save, {"--lora_modules_to_save", "--modules_to_save"},
                            "modules that train whole and are saved with the adapter", group));
  of_lora(table.add(&f.use_rslora, {"--use_rslora"}, "scale by alpha / sqrt(r)", group));
  of_lora(table.add(&f.use_dora, {"--use_dora"}, "also train the magnitudes of the adapted weights (DoRA)", group));
  of_lora(table.add(&f.lora_bias, {"--lora_bias"}, "which biases train", group)).choices({"none", "all", "lora_only"});
  of_lora(table.add(&f.init_lora_weights, {"--init_lora_weights"}, "initial adapters", group))
      .choices({"true", "gaussian", "false"});
  table.add_without_effect({"--lora_task_type", config::Unused::kText, "the task says it"});
  table.add_refused({"--lora_target_parameters", config::Unused::kText,
                     "adapters sit on modules; name them with --lora_target_modules"});
}

void check_lora_flags(const LoraFlags& f, config::Problems& problems) {
  problems.require(f.lora_r >= 1 || !f.use_peft_lora, "--lora_r must be at least 1", "lora_r");
  problems.require(f.num_virtual_tokens >= 1 || f.peft_type != "PROMPT_TUNING" || !f.use_peft_lora ||
                       !f.peft_config.empty() || !f.adapter_name_or_path.empty(),
                   "--peft_type PROMPT_TUNING needs --num_virtual_tokens, at least 1", "num_virtual_tokens");
  problems.require(f.lora_dropout >= 0 && f.lora_dropout < 1, "--lora_dropout must be in [0, 1)", "lora_dropout");
  problems.require(f.use_peft_lora || f.adapter_name_or_path.empty(),
                   "--adapter_name_or_path contradicts --use_peft_lora false: an adapter is trained, or all weights "
                   "are",
                   "adapter_name_or_path");
}

std::shared_ptr<const peft::PeftMethod> new_adapter(const LoraFlags& f, const std::string& task_type,
                                                    const std::string& base_model) {
  if (!f.use_peft_lora || !f.adapter_name_or_path.empty()) return nullptr;
  std::shared_ptr<peft::PeftMethod> method =
      f.peft_config.empty() ? peft::read_peft_keys(settings(f), "the flags") : peft::read_peft_file(f.peft_config);
  if (method->task_type.empty()) method->task_type = task_type;
  method->base_model_name_or_path = base_model;
  method->inference_mode = false;
  if (auto* prompt = dynamic_cast<peft::PromptTuning*>(method.get())) read_prompt_text(*prompt);
  return method;
}

}  // namespace tessera::tasks
