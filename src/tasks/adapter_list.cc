#include "tasks/adapter_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/document.h"
#include "peft/several/several_adapters.h"
#include "tasks/fsdp_options.h"
#include "tessera/base/error.h"
#include "tessera/optim/schedule.h"
#include "train/lora_fa_projections.h"

namespace tessera::tasks {
namespace {

using config::Node;

// An adapter's own are the flags of these groups, but for a few.
const std::set<std::string> kOwnGroups = {"Adapters", "Data", "Training", "Optimizer"};
const std::set<std::string> kOfTheRun = {"--adapters",        "--do_train",  "--gradient_accumulation_steps",
                                         "--sync_each_batch", "--device",    "--use_cpu",
                                         "--nan_policy",      "--loss_type", "--label_smoothing_factor"};

bool is_own(const config::Option& option) {
  const bool works = option.effect() == config::Option::Effect::kWorks;
  return !works || (kOwnGroups.contains(option.group()) && !kOfTheRun.contains(option.names()[0]));
}

std::string flag_text(const Node& value) {
  const auto is_word = [](const Node& item) {
    return item.kind == Node::Kind::kScalar && item.text.find(',') == std::string::npos;
  };
  if (value.kind == Node::Kind::kScalar) return value.text;
  if (value.kind != Node::Kind::kList || !std::all_of(value.items.begin(), value.items.end(), is_word))
    return config::json_of(value);
  std::string all;
  for (const auto& word : value.items) all += (all.empty() ? "" : ",") + word.text;
  return all;
}

/// Names become those of modules, of numbers and of folders beside checkpoints.
void check_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  const bool taken =
      name == peft::kBaseModelName || name == "runs" || name == "training_state" || name.starts_with("checkpoint-");
  if (plain && !taken) return;
  throw ConfigError(where + "'" + name +
                        "' cannot be an adapter's name: its results lie in a folder of this name beside checkpoints, "
                        "runs and training_state; use letters, digits, - and _",
                    "adapters");
}

/// What is of one run, and several cannot share.
void check_together(const SftOptions& o, config::Problems& problems) {
  const auto& a = o.training;
  const auto refuse = [&](bool found, const std::string& flag, const std::string& remedy) {
    problems.require(!found, flag + " does not go with --adapters: " + remedy, "adapters");
  };
  refuse(!a.do_train, "--do_train false", "evaluate each adapter by itself with --adapter_name_or_path");
  refuse(
      launch_settings(a.bf16, a.fp16).mixed_precision == config::MixedPrecision::kFp16, "float16",
      "its loss scale is one for all, so that an overflow of one adapter would take a step from the others; use bf16");
  refuse(a.nan_policy == train::NanPolicy::kSkip, "--nan_policy skip",
         "a step that is left out would be left out of all; leave it out");
  refuse(a.optim == train::kLoraFa, "--optim " + a.optim, "train LoRA-FA by itself");
  problems.attempt([&] {
    const auto schedule = optim::make_schedule(
        a.lr_scheduler_type, {.lr = a.learning_rate, .total_steps = 1, .kwargs_json = a.lr_scheduler_kwargs});
    refuse(schedule->listens(), "--lr_scheduler_type " + a.lr_scheduler_type,
           "it follows one run's evaluations; choose another");
  });
  refuse(a.early_stopping_patience > 0, "--early_stopping_patience",
         "it would end all adapters by the mean of their evaluations; give each its max_steps or num_train_epochs");
  refuse(a.load_best_model_at_end, "--load_best_model_at_end",
         "the best of their mean is the best of none; choose among checkpoints by eval_NAME_loss");
  refuse(!o.adapter.use_peft_lora, "--use_peft_lora false", "leave it out");
  refuse(o.eval_generate > 0, "--eval_generate", "ask `tessera generate` with --adapter NAME=FOLDER");
  refuse(o.upload.push_to_hub, "--push_to_hub", "upload the folders when the run has ended");
  refuse(a.save_accelerate_state, "--save_accelerate_state", "Accelerate has no such state; leave it out");
}

/// What all adapters are told is said once.
std::vector<std::string> notes_of(const std::vector<SideBySide>& all) {
  const auto has = [](const std::vector<std::string>& notes, const std::string& note) {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  };
  std::vector<std::string> notes;
  for (const auto& note : all[0].options->notes) {
    const auto is_told = [&](const SideBySide& adapter) { return has(adapter.options->notes, note); };
    if (std::all_of(all.begin(), all.end(), is_told)) notes.push_back(note);
  }
  const auto common = notes;
  for (const auto& [name, options] : all)
    for (const auto& note : options->notes)
      if (!has(common, note)) notes.push_back("adapter '" + name + "': " + note);
  return notes;
}

}  // namespace

void add_adapter_list_flag(config::OptionTable& table, SftOptions& o) {
  table
      .add(&o.adapters_file, {"--adapters"},
           "train several adapters side by side on one frozen base: a YAML or JSON file that maps the name of each to "
           "the flags that are its own (dataset_name, lora_r, learning_rate, ...); results lie in output_dir/NAME",
           "Adapters")
      .placeholder("FILE")
      .implies("--use_peft_lora", "true");
}

std::vector<ListedAdapter> read_adapter_list(const std::string& file) {
  const auto document = config::read_document(file);
  if (document.entries.empty())
    throw ConfigError(file + ": no adapter is named; expected lines such as 'chat: {dataset_name: chats/, lora_r: 16}'",
                      "adapters");
  SftOptions unused;
  const auto table = sft_table(unused);
  std::vector<ListedAdapter> adapters;
  for (const auto& entry : document.entries) {
    const auto where = config::at_line(file, entry.line);
    check_name(entry.key, where);
    if (entry.value.kind != Node::Kind::kMap && entry.value.kind != Node::Kind::kNull)
      throw ConfigError(where + "'" + entry.key + "' expects the adapter's flags, as in 'lora_r: 16'", "adapters");
    auto& adapter = adapters.emplace_back(ListedAdapter{entry.key, {}});
    for (const auto& flag : entry.value.entries) {
      if (flag.value.kind == Node::Kind::kNull) continue;  // as it is on the command line
      const auto* option = table.find(flag.key);
      if (option && !is_own(*option))
        throw ConfigError(fmt::format("{}adapter '{}': {} is of the whole run, not of one adapter; give it on the "
                                      "command line",
                                      config::at_line(file, flag.line), entry.key, option->names()[0]),
                          "adapters");
      adapter.flags.push_back("--" + flag.key + "=" + flag_text(flag.value));
    }
  }
  return adapters;
}

SftOptions parse_side_by_side(const std::vector<std::string>& args, const std::string& file, std::ostream& out) {
  std::vector<SideBySide> all;
  for (const auto& adapter : read_adapter_list(file)) {
    auto flags = args;
    flags.insert(flags.end(), adapter.flags.begin(), adapter.flags.end());
    try {
      auto options = *parse_one_sft(flags, out);
      config::Problems problems;
      check_together(options, problems);
      problems.throw_all();
      all.push_back({adapter.name, std::make_shared<const SftOptions>(std::move(options))});
    } catch (const ConfigError& e) {
      throw ConfigError("adapter '" + adapter.name + "': " + e.what(), e.key);
    }
  }
  SftOptions options = *all.front().options;
  options.notes = notes_of(all);
  options.side_by_side = std::move(all);
  return options;
}

}  // namespace tessera::tasks
