#include "tasks/lora_flags.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "base/open_file.h"
#include "hub/model_folder.h"
#include "hub/name.h"
#include "peft/adapter_config.h"
#include "peft/methods/lora.h"
#include "peft/methods/prompt_tuning.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

using Keys = nlohmann::ordered_json;  // of a configuration, as they are given: the order of patterns counts

/// A list of names, or one regular expression.
Keys names(const std::vector<std::string>& words) {
  const bool regex = words.size() == 1 && words[0].find_first_of("*+?()[]|^$\\") != std::string::npos;
  return regex ? Keys(words[0]) : Keys(words);
}

void add_method_args(Keys& keys, const LoraFlags& f);

/// The flags as the keys of adapter_config.json, of whatever method: it takes its own.
Keys settings(const LoraFlags& f) {
  Keys keys = {{"peft_type", f.peft_type},
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
  const bool like_lora = f.peft_type == "LORA" || f.peft_type == "ADALORA";
  if (like_lora) keys["bias"] = f.lora_bias;
  const auto& targets = f.target_modules.empty() && like_lora ? f.lora_target_modules : f.target_modules;
  if (!targets.empty()) keys["target_modules"] = names(targets);
  if (!f.feedforward_modules.empty()) keys["feedforward_modules"] = names(f.feedforward_modules);
  if (f.peft_type != "LORA") keys.erase("r");  // --lora_r is LoRA's
  add_method_args(keys, f);
  return keys;
}

/// "8", "true", "[1,2]" and "0.5" as JSON, other texts as they are; "5,9" is a list.
Keys value_of(const std::string& text) {
  for (const auto& form : {text, "[" + text + "]"}) {
    const auto parsed = Keys::parse(form, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_discarded()) return parsed;
  }
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return nullptr;
  if (text.find(',') == std::string::npos) return text;
  Keys words = Keys::array();
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

/// "a=1, b=[2,3]" by commas outside of brackets.
std::vector<std::pair<std::string, std::string>> split_args(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> out;
  int depth = 0;
  std::string part;
  const auto close = [&] {
    const auto first = part.find_first_not_of(' '), equals = part.find('=');
    if (first == std::string::npos) return;
    if (equals == std::string::npos) throw ConfigError("--peft_args: '" + part + "' is no KEY=VALUE", "peft_args");
    out.emplace_back(part.substr(first, equals - first), part.substr(equals + 1));
    part.clear();
  };
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth == 0) {
      close();
    } else {
      part += c;
    }
  }
  close();
  return out;
}

/// The keys of a method's configuration that no flag stands for.
std::set<std::string> own_keys(const std::string& type) {
  static const std::set<std::string> kOthers = {"peft_type",
                                                "peft_version",
                                                "auto_mapping",
                                                "revision",
                                                "task_type",
                                                "inference_mode",
                                                "target_modules",
                                                "modules_to_save",
                                                "feedforward_modules",
                                                "num_virtual_tokens",
                                                "use_rslora",
                                                "use_dora",
                                                "lora_alpha",
                                                "lora_dropout",
                                                "init_lora_weights",
                                                "lora_bias",
                                                "prompt_tuning_init",
                                                "prompt_tuning_init_text",
                                                "base_model_name_or_path"};
  std::set<std::string> keys;
  const auto types = peft::method_types();
  if (std::find(types.begin(), types.end(), type) == types.end()) return keys;
  const auto defaults = Keys::parse(peft::adapter_config_json(*peft::make_method(type)));
  for (const auto& item : defaults.items())
    if (!kOthers.contains(item.key())) keys.insert(item.key());
  return keys;
}

void add_method_args(Keys& keys, const LoraFlags& f) {
  const auto known = own_keys(f.peft_type);
  for (const auto& [key, text] : split_args(f.peft_args)) {
    if (!known.contains(key)) {
      std::string names;
      for (const auto& name : known) names += (names.empty() ? "" : ", ") + name;
      throw ConfigError("--peft_args: '" + key + "' is no key of " + f.peft_type + "; there are " + names, "peft_args");
    }
    auto& value = keys[key] = value_of(text);
    const bool lists_tokens = key == "alora_invocation_tokens" || key == "trainable_token_indices";
    if (lists_tokens && value.is_number()) value = Keys::array({value});  // one token without brackets
  }
}

void read_prompt_text(peft::PromptTuning& method) {
  if (method.prompt_tuning_init != "TEXT") return;
  auto& tokenizer = method.tokenizer_name_or_path;
  if (tokenizer.empty()) tokenizer = method.base_model_name_or_path;
  const auto ids = text::open_tokenizer(hub::find_settings(tokenizer))->encode(method.prompt_tuning_init_text).ids;
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
      .implies("--use_peft_lora", "true")
      .idle_with({"--adapter_name_or_path", {config::kSet}});
  of_new_adapters(table.add(&f.target_modules, {"--target_modules"},
                            "name suffixes, one regular expression, or all-linear; empty: the family's", group));
  of_new_adapters(table.add(&f.feedforward_modules, {"--feedforward_modules"},
                            "IA3: the targets whose inputs are scaled; empty: the family's", group))
      .only_with({{"--peft_type", {"IA3"}}});
  const auto of_prompts = [&](config::Option& option) -> config::Option& {
    return of_new_adapters(option).only_with({{"--peft_type", {"PROMPT_TUNING"}}});
  };
  of_new_adapters(table.add(&f.num_virtual_tokens, {"--num_virtual_tokens"}, "length of the prompt", group))
      .only_with({{"--peft_type", {"PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"}}});
  of_new_adapters(table.add(&f.peft_args, {"--peft_args"},
                            "further keys of the method's adapter_config.json (r=4, alpha=8); each is a flag, too: "
                            "--alpha 8",
                            group))
      .placeholder("KEY=VALUE,...");
  of_prompts(table.add(&f.prompt_tuning_init, {"--prompt_tuning_init"}, "initial prompt", group))
      .choices({"RANDOM", "SAMPLE_VOCAB", "TEXT"});
  of_prompts(table.add(&f.prompt_tuning_init_text, {"--prompt_tuning_init_text"}, "text of the initial prompt", group));
  const auto of_lora = [&](config::Option& option) -> config::Option& {
    return of_new_adapters(option).only_with({{"--peft_type", {"LORA"}}});
  };
  const auto like_lora = [&](config::Option& option) -> config::Option& {
    return of_new_adapters(option).only_with({{"--peft_type", {"LORA", "ADALORA"}}});
  };
  of_lora(table.add(&f.lora_r, {"--lora_r"}, "rank", group));
  like_lora(table.add(&f.lora_alpha, {"--lora_alpha"}, "scale is alpha / r", group));
  like_lora(table.add(&f.lora_dropout, {"--lora_dropout"}, "dropout before the adapters", group));
  like_lora(table.add(&f.lora_target_modules, {"--lora_target_modules"},
                      "name suffixes, one regular expression, or all-linear; empty: the family's", group));
  of_new_adapters(table.add(&f.lora_modules_to_save, {"--lora_modules_to_save", "--modules_to_save"},
                            "modules that train whole and are saved with the adapter", group));
  of_lora(table.add(&f.use_rslora, {"--use_rslora"}, "scale by alpha / sqrt(r)", group));
  of_lora(table.add(&f.use_dora, {"--use_dora"}, "also train the magnitudes of the adapted weights (DoRA)", group));
  like_lora(table.add(&f.lora_bias, {"--lora_bias"}, "which biases train", group))
      .choices({"none", "all", "lora_only"});
  like_lora(table.add(&f.init_lora_weights, {"--init_lora_weights"}, "initial adapters", group))
      .placeholder("true|gaussian|false|orthogonal|pissa|pissa_niter_N|olora|loftq|eva|mica");
  of_lora(table.add(&f.convert_to_lora, {"--convert_to_lora", "--convert_pissa_to_lora"},
                    "save what begins with a part of the weights (pissa, olora) as LoRA of twice the rank beside the "
                    "base as it is",
                    group));
  table.add_without_effect({"--lora_task_type", config::Unused::kText, "the task says it"});
  table.add_refused(
      {"--lora_target_parameters", config::Unused::kList,
       "write --target_parameters, as the configuration names it, or name modules with --lora_target_modules"});
}

void refuse_adapter_list(config::OptionTable& table) {
  table.add_refused({"--adapters", config::Unused::kText,
                     "several adapters side by side are trained by tessera sft alone; train them one after another"});
}

std::vector<std::string> with_method_keys(const std::vector<std::string>& args) {
  const auto plain = [](const std::string& word) {
    auto name = word.starts_with("--") ? word.substr(2, word.find('=') - 2) : std::string();
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  };
  std::string type = "LORA";
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (plain(args[i]) != "peft_type") continue;
    const auto equals = args[i].find('=');
    if (equals != std::string::npos) type = args[i].substr(equals + 1);
    if (equals == std::string::npos && i + 1 < args.size()) type = args[i + 1];
  }
  const auto keys = own_keys(type);
  std::vector<std::string> out;
  std::string gathered;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto name = plain(args[i]);
    if (name == "peft_args" && i + 1 < args.size() && args[i].find('=') == std::string::npos) {
      gathered += (gathered.empty() ? "" : ",") + args[++i];
      continue;
    }
    if (!keys.contains(name)) {
      out.push_back(args[i]);
      continue;
    }
    const auto first = i;
    std::string value;
    if (const auto equals = args[i].find('='); equals != std::string::npos) value = args[i].substr(equals + 1);
    while (value.empty() && i + 1 < args.size() && !args[i + 1].starts_with("--")) {
      value = args[++i];
      while (i + 1 < args.size() && !args[i + 1].starts_with("--")) value += "," + args[++i];
    }
    if (name == "tokenizer_name_or_path")  // the command's own flag as well
      for (auto word = first; word <= i; ++word) out.push_back(args[word]);
    if (value.empty()) value = "true";
    const bool list = value.find(',') != std::string::npos && value.front() != '[' && value.front() != '{';
    gathered += (gathered.empty() ? "" : ",") + name + "=" + (list ? json_text(value_of(value)) : value);
  }
  if (!gathered.empty()) out.insert(out.end(), {"--peft_args", gathered});
  return out;
}

void check_lora_flags(const LoraFlags& f, config::Problems& problems) {
  problems.require(f.lora_r >= 1 || !f.use_peft_lora, "--lora_r must be at least 1", "lora_r");
  const bool prompts = f.peft_type == "PROMPT_TUNING" || f.peft_type == "P_TUNING" || f.peft_type == "PREFIX_TUNING";
  problems.require(f.num_virtual_tokens >= 1 || !prompts || !f.use_peft_lora || !f.peft_config.empty() ||
                       !f.adapter_name_or_path.empty(),
                   "--peft_type " + f.peft_type + " needs --num_virtual_tokens, at least 1", "num_virtual_tokens");
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
      f.peft_config.empty() ? peft::read_peft_keys(settings(f), "the flags", nullptr, peft::UnknownKeys::kIgnored)
                            : peft::read_peft_file(f.peft_config);
  if (method->task_type.empty()) method->task_type = task_type;
  method->base_model_name_or_path = base_model;
  if (const auto name = hub::parse_name(hub::Kind::kModel, base_model); name && !is_there(base_model)) {
    method->base_model_name_or_path = name->id;
    if (name->revision != "main") method->revision = name->revision;
  }
  method->inference_mode = false;
  if (auto* lora = dynamic_cast<peft::Lora*>(method.get())) lora->convert_to_lora = f.convert_to_lora;
  if (auto* prompt = dynamic_cast<peft::PromptTuning*>(method.get())) read_prompt_text(*prompt);
  return method;
}

}  // namespace tessera::tasks
