#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include "tasks/parse_task.h"
#include "tasks/preference.h"

namespace tessera::tasks {
namespace {

using config::Unused;
using preference::Method;

constexpr config::UnusedFlag kIdlePreference[] = {
    {"--padding_free", Unused::kBool, "padding is always taken out of a batch"},
    {"--padding_value", Unused::kNumber, "padding is never seen"},
    {"--ref_model_mixup_alpha", Unused::kNumber, "the reference stays as it is"},
    {"--ref_model_sync_steps", Unused::kNumber, "the reference stays as it is"},
    {"--max_completion_length", Unused::kNumber, "of encoder-decoder models"},
    {"--label_smoothing_factor", Unused::kNumber,
     "of losses of tokens; none of TRL's trainers of preferences reads it"},
};

constexpr config::RefusedFlag kRefusedPreference[] = {
    {"--sync_ref_model", Unused::kBool, "the reference stays as it is; leave it out"},
    {"--generate_during_eval", Unused::kBool, "use tessera generate on a checkpoint"},
    {"--is_encoder_decoder", Unused::kBool, "preference training is of causal models; leave it out"},
    {"--reference_free", Unused::kBool, "gone from TRL; tessera cpo and orpo need no reference"},
    {"--rpo_alpha", Unused::kNumber, "gone from TRL; --loss_type sigmoid,sft --loss_weights 1,ALPHA"},
    {"--max_prompt_length", Unused::kNumber, "gone from TRL; --max_length cuts prompt and answer together"},
};

struct Words {
  const char *name, *summary, *model;
};
const Words& words_for(Method method) {
  static const std::map<Method, Words> words = {
      {Method::kDpo,
       {"dpo", "trains a causal language model on pairs of answers, against a reference, fully sharded",
        "folder, or name on the Hub (org/name[@revision]), of a causal language model"}},
      {Method::kOrpo,
       {"orpo", "trains a causal language model on pairs of answers by their odds, fully sharded",
        "folder, or name on the Hub (org/name[@revision]), of a causal language model"}},
      {Method::kCpo,
       {"cpo", "trains a causal language model on pairs of answers without a reference, fully sharded",
        "folder, or name on the Hub (org/name[@revision]), of a causal language model"}},
      {Method::kKto,
       {"kto", "trains a causal language model on answers labelled good or bad, fully sharded",
        "folder, or name on the Hub (org/name[@revision]), of a causal language model"}},
      {Method::kReward,
       {"reward", "trains a reward model on pairs of answers, fully sharded",
        "folder of a model: a classifier with one label, or a language model, which gets a new head"}},
  };
  return words.at(method);
}

void add_preference_model(config::OptionTable& table, PreferenceOptions& o) {
  const char* group = "Model";
  table.add(&o.model_name_or_path, {"--model_name_or_path", "--model"}, words_for(o.objective.method).model, group)
      .required();
  table.add(&o.tokenizer_name_or_path, {"--tokenizer_name_or_path", "--tokenizer_name"},
            "folder or file of the tokenizer, if not the model's folder", group);
  add_trl_model_flags(table, o);
  if (o.objective.method != Method::kReward) add_router_flag(table, o);
  table.add(&o.disable_dropout, {"--disable_dropout"}, "of the model and of its adapters", group);
  for (const auto& flag : kIdlePreference) table.add_without_effect(flag);
  for (const auto& flag : kRefusedPreference) table.add_refused(flag);
}

void add_dpo(config::OptionTable& table, PreferenceOptions& o) {
  const char* group = "Loss";
  auto& d = o.objective.dpo;
  std::vector<std::string> names;
  for (const auto& [name, loss] : preference::dpo_losses()) names.push_back(name);
  table.add(&o.dpo_losses, {"--loss_type"}, "one loss, or several that are added", group).choices(names);
  table.add(&o.dpo_weights, {"--loss_weights"}, "of several losses; empty: 1 each", group);
  table.add(&d.beta, {"--beta"}, "how strongly the reference holds the policy", group);
  table.add(&d.label_smoothing, {"--label_smoothing"}, "probability that a pair is labelled the wrong way", group)
      .only_with({{"--loss_type", {"robust", "exo_pair", "aot", "aot_unpaired"}}});
  table.add(&d.ld_alpha, {"--ld_alpha"}, "LD-DPO: weight of what is longer than the pair's other answer; none: 1",
            group);
  table.add(&d.use_weighting, {"--use_weighting"}, "WPO: weigh pairs by how likely the policy makes them", group);
  table.add(&d.discopop_tau, {"--discopop_tau"}, "temperature of the mixture", group)
      .only_with({{"--loss_type", {"discopop"}}});
  using preference::Divergence;
  table.add_enum(&d.divergence,
                 {{"reverse_kl", Divergence::kReverseKl},
                  {"forward_kl", Divergence::kForwardKl},
                  {"js_divergence", Divergence::kJs},
                  {"alpha_divergence", Divergence::kAlpha}},
                 {"--f_divergence_type"}, "between policy and reference", group);
  table.add(&d.alpha_coefficient, {"--f_alpha_divergence_coef"}, "its exponent", group)
      .only_with({{"--f_divergence_type", {"alpha_divergence"}}});
}

void add_cpo(config::OptionTable& table, preference::CpoOptions& c) {
  const char* group = "Loss";
  using preference::CpoLoss;
  table.add_enum(
      &c.loss,
      {{"sigmoid", CpoLoss::kSigmoid}, {"hinge", CpoLoss::kHinge}, {"ipo", CpoLoss::kIpo}, {"simpo", CpoLoss::kSimpo}},
      {"--loss_type"}, "simpo compares means per token", group);
  table.add(&c.beta, {"--beta"}, "scale of the difference of log-probabilities", group);
  table.add(&c.label_smoothing, {"--label_smoothing"}, "probability that a pair is labelled the wrong way", group)
      .only_with({{"--loss_type", {"sigmoid", "simpo"}}});
  table.add(&c.cpo_alpha, {"--cpo_alpha"}, "weight of the chosen answers' own loss; 0 for SimPO proper", group);
  table.add(&c.simpo_gamma, {"--simpo_gamma"}, "margin", group).only_with({{"--loss_type", {"simpo"}}});
  table.add(&c.alpha, {"--alpha"}, "AlphaPO: (1 - p^-alpha) / alpha in place of log p; 0: log p", group);
}

void add_kto(config::OptionTable& table, PreferenceOptions& o) {
  const char* group = "Loss";
  auto& k = o.objective.kto;
  using preference::KtoLoss;
  table.add_enum(&k.loss, {{"kto", KtoLoss::kKto}, {"apo_zero_unpaired", KtoLoss::kApoZeroUnpaired}}, {"--loss_type"},
                 "apo_zero_unpaired needs no estimate of the divergence", group);
  table.add(&k.beta, {"--beta"}, "how strongly the reference holds the policy", group);
  table.add(&k.desirable_weight, {"--desirable_weight"}, "of good answers' losses", group);
  table.add(&k.undesirable_weight, {"--undesirable_weight"}, "of bad answers' losses", group);
}

void add_loss(config::OptionTable& table, PreferenceOptions& o) {
  switch (o.objective.method) {
    case Method::kDpo:
      return add_dpo(table, o);
    case Method::kOrpo:
      table.add(&o.objective.orpo_beta, {"--beta"}, "weight of the odds ratio (the paper's lambda)", "Loss");
      return;
    case Method::kCpo:
      return add_cpo(table, o.objective.cpo);
    case Method::kKto:
      return add_kto(table, o);
    case Method::kReward:
      table.add(&o.objective.reward.center_rewards_coefficient, {"--center_rewards_coefficient"},
                "weight of the squared sum of a pair's rewards, which draws their mean to 0; none: 0", "Loss");
      return;
  }
}

void add_reference(config::OptionTable& table, PreferenceOptions& o) {
  if (!o.objective.needs_reference()) return;
  const char* group = "Reference";
  table.add(&o.ref_model, {"--ref_model", "--ref_model_name_or_path"},
            "folder of the reference; empty: the model as it is at the start, without a new adapter. It is read, asked "
            "once for every row and left before the first step",
            group);
  table.add(&o.precompute_ref_log_probs, {"--precompute_ref_log_probs"},
            "ask the reference before the first step. Always so where it is not the model with its adapter off", group);
  table
      .add(&o.precompute_ref_batch_size, {"--precompute_ref_batch_size"},
           "rows of a rank while it is asked; none: per_device_train_batch_size", group)
      .reads("none", "0");
}

void add_preference_data(config::OptionTable& table, PreferenceOptions& o) {
  const char* group = "Data";
  auto& d = o.data;
  table.add(
      &d.dataset_name, {"--dataset_name", "--dataset_path"},
      "a file, a folder with a file (or several) for each split, or org/name on the Hub: JSONL, JSON, CSV, Parquet",
      group);
  table.add(&d.dataset_config, {"--dataset_config", "--dataset_config_name"},
            "the folder of one of several configurations in it", group);
  table.add(&d.splits, {"--splits"}, "the first is trained on, the second evaluated on", group);
  add_trl_data_flags(table, o);
  table.add(&o.chat_template_format, {"--chat_template_format"}, "none: the tokenizer's own template", group)
      .choices({"chatml", "zephyr", "none"});
  table.add(
      &o.chat_template_path, {"--chat_template_path", "--chat_template"},
      "file of a template, the template itself, or folder of a tokenizer whose template, added tokens and eos are "
      "taken; empty: the tokenizer's own",
      group);
  table.add(&d.max_length, {"--max_length"}, "tokens of prompt and answer; none or 0: no limit", group)
      .reads("none", "0");
  if (o.objective.method == Method::kDpo)
    table.add_enum(&d.truncation_mode,
                   {{"keep_start", data::TruncationMode::kKeepStart}, {"keep_end", data::TruncationMode::kKeepEnd}},
                   {"--truncation_mode"}, "what is left of longer rows", group);
  table
      .add(&o.pad_to_multiple_of, {"--pad_to_multiple_of"}, "length of padded batches; none and auto: any length",
           group)
      .reads("none", "1")
      .reads("auto", "1");
  table.add(&o.eos_token, {"--eos_token"}, "empty: the tokenizer's", group);
  table.add(&o.pad_token, {"--pad_token"}, "empty: the tokenizer's, or eos", group);
  table.add(&d.dataset_num_proc, {"--dataset_num_proc"}, "threads that tokenise; none or 0: one for each core", group)
      .reads("none", "0");
  table.add(&d.cache_folder, {"--dataset_cache_dir"}, "of tokenised rows; empty: in the user's cache", group);
}

/// TRL refuses these, too. Under another divergence a term of the prompt is left that only a difference of rewards
/// cancels; losses that sort log-ratios lose which pair is whose.
void check_combinations(const preference::DpoOptions& d, config::Problems& problems) {
  using preference::DpoLoss;
  const std::set<DpoLoss> of_ratios = {DpoLoss::kNcaPair,     DpoLoss::kBcoPair, DpoLoss::kSppoHard, DpoLoss::kAot,
                                       DpoLoss::kAotUnpaired, DpoLoss::kApoZero, DpoLoss::kApoDown};
  const std::set<DpoLoss> sorting = {DpoLoss::kAot, DpoLoss::kAotUnpaired};
  const auto first_of = [&](const std::set<DpoLoss>& set) -> std::string {
    for (const auto& [name, loss] : preference::dpo_losses())
      if (set.contains(loss) && std::find(d.losses.begin(), d.losses.end(), loss) != d.losses.end()) return name;
    return {};
  };
  const auto plain = first_of(of_ratios), sorted = first_of(sorting);
  problems.require(d.divergence == preference::Divergence::kReverseKl || plain.empty(),
                   "--f_divergence_type other than reverse_kl is not defined for --loss_type " + plain +
                       ", which is no function of the difference of rewards; leave it out",
                   "f_divergence_type");
  problems.require(!d.use_weighting || sorted.empty(),
                   "--use_weighting is not defined for --loss_type " + sorted +
                       ", which sorts log-ratios, so that no pair has a weight; leave it out",
                   "use_weighting");
}

void check_dpo(PreferenceOptions& o, config::Problems& problems) {
  auto& d = o.objective.dpo;
  d.losses.clear();
  for (const auto& name : o.dpo_losses) problems.attempt([&] { d.losses.push_back(preference::dpo_loss_named(name)); });
  problems.require(!o.dpo_losses.empty(), "--loss_type names no loss", "loss_type");
  std::string weights;
  for (const auto& word : o.dpo_weights) weights += (weights.empty() ? "" : ",") + word;
  problems.attempt([&] { preference::set_argument(o.objective, "loss_weights", weights); });
  problems.require(
      d.weights.empty() || d.weights.size() == d.losses.size(),
      fmt::format("--loss_weights has {} numbers for {} losses of --loss_type", d.weights.size(), o.dpo_losses.size()),
      "loss_weights");
  const auto has = [&](preference::DpoLoss loss) {
    return std::find(d.losses.begin(), d.losses.end(), loss) != d.losses.end();
  };
  check_combinations(d, problems);
  problems.require(!has(preference::DpoLoss::kExoPair) || (d.label_smoothing > 0 && d.label_smoothing < 1),
                   "--loss_type exo_pair needs --label_smoothing above 0, 1e-3 for example", "label_smoothing");
  problems.require(!has(preference::DpoLoss::kRobust) || (d.label_smoothing >= 0 && d.label_smoothing < 0.5),
                   "--loss_type robust needs --label_smoothing in [0, 0.5)", "label_smoothing");
  problems.require(d.discopop_tau > 0, "--discopop_tau must be above 0", "discopop_tau");
  problems.require(!d.ld_alpha || (*d.ld_alpha >= 0 && *d.ld_alpha <= 1), "--ld_alpha must be in [0, 1]", "ld_alpha");
}

double beta_of(const preference::Objective& o) {
  switch (o.method) {
    case Method::kDpo:
      return o.dpo.beta;
    case Method::kOrpo:
      return o.orpo_beta;
    case Method::kCpo:
      return o.cpo.beta;
    case Method::kKto:
      return o.kto.beta;
    case Method::kReward:
      return 1;
  }
  return 1;
}

void check_preference(const config::OptionTable& table, PreferenceOptions& o, config::Problems& problems) {
  if (o.objective.method == Method::kDpo) check_dpo(o, problems);
  problems.require(beta_of(o.objective) > 0, "--beta must be above 0", "beta");
  const double smoothing = o.objective.dpo.label_smoothing + o.objective.cpo.label_smoothing;
  problems.require(smoothing >= 0 && smoothing < 1, "--label_smoothing must be in [0, 1)", "label_smoothing");
  const auto& alpha = o.objective.cpo;
  problems.require(alpha.loss != preference::CpoLoss::kHinge && alpha.loss != preference::CpoLoss::kIpo
                       ? true
                       : alpha.label_smoothing == 0,
                   "--label_smoothing does nothing to --loss_type hinge and ipo; leave it out", "label_smoothing");
  problems.require(!o.objective.needs_mismatched() || o.training.per_device_train_batch_size > 1,
                   "--loss_type kto compares each answer with other prompts of its batch: "
                   "--per_device_train_batch_size must be above 1",
                   "per_device_train_batch_size");
  problems.require(
      !o.objective.needs_mismatched() || o.training.train_sampling_strategy == train::SamplingStrategy::kSequential,
      "--loss_type kto compares each answer with those of its neighbours in the file: "
      "--train_sampling_strategy must be sequential, or the loss apo_zero_unpaired",
      "train_sampling_strategy");
  problems.require(o.pad_to_multiple_of >= 1, "--pad_to_multiple_of must be at least 1", "pad_to_multiple_of");
  problems.require(o.data.max_length >= 0, "--max_length must not be negative", "max_length");
  problems.require(o.precompute_ref_batch_size >= 0, "--precompute_ref_batch_size must be at least 1",
                   "precompute_ref_batch_size");
  problems.require(o.chat_template_path.empty() || o.chat_template_format == "none",
                   "--chat_template_path and --chat_template_format exclude each other", "chat_template_path");
  check_trl_flags(o, table, o, o.data, problems);
}

data::PreferenceForm form_for(Method method) {
  switch (method) {
    case Method::kDpo:
      return data::PreferenceForm::kPairs;
    case Method::kOrpo:
    case Method::kCpo:
      return data::PreferenceForm::kOwnPrompt;
    case Method::kKto:
      return data::PreferenceForm::kUnpaired;
    case Method::kReward:
      return data::PreferenceForm::kWhole;
  }
  return data::PreferenceForm::kPairs;
}

/// What evaluations give, by TRL's names.
std::vector<std::string> measured_names(Method method) {
  std::vector<std::string> names = {"loss", "num_tokens", "runtime", "samples_per_second", "steps_per_second"};
  const auto add = [&](std::initializer_list<const char*> more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  if (method == Method::kReward) {
    add({"min_reward", "mean_reward", "max_reward", "accuracy", "margin"});
  } else {
    add({"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "logits/chosen",
         "logits/rejected"});
    if (method != Method::kKto) add({"rewards/accuracies"});
    if (method == Method::kDpo) add({"mean_token_accuracy"});
    if (method == Method::kDpo || method == Method::kKto) add({"entropy"});
    if (method == Method::kKto) add({"kl"});
    if (method == Method::kOrpo || method == Method::kCpo) add({"nll_loss"});
    if (method == Method::kOrpo) add({"log_odds_ratio", "log_odds_chosen"});
  }
  for (auto& name : names) name = "eval_" + name;
  return names;
}

}  // namespace

const char* name_of(Method method) {
  return words_for(method).name;
}

PreferenceOptions::PreferenceOptions(Method method) {
  objective.method = method;
  data.form = form_for(method);
  adapter.use_peft_lora = false;
  adapter.lora_r = 16;
  adapter.lora_alpha = 32;
  adapter.lora_dropout = 0.05;
  training.output_dir = std::string("tessera_") + name_of(method);
  training.learning_rate = method == Method::kReward ? 1e-4 : 1e-6;
  training.logging_steps = 10;
  training.bf16 = true;
  training.gradient_checkpointing = true;
  if (method == Method::kKto) training.train_sampling_strategy = train::SamplingStrategy::kSequential;
}

config::OptionTable preference_table(PreferenceOptions& o) {
  const auto& words = words_for(o.objective.method);
  config::OptionTable table(std::string("tessera ") + words.name, words.summary);
  table.example(
      "--model_name_or_path HuggingFaceTB/SmolLM2-135M-Instruct --dataset_name pairs/ --use_peft_lora true "
      "--output_dir out");
  add_preference_model(table, o);
  add_lora_flags(table, o.adapter, "Adapters");
  refuse_adapter_list(table);
  add_quant_flags(table, o.quant, "Packed weights");
  add_loss(table, o);
  add_reference(table, o);
  add_preference_data(table, o);
  if (o.objective.method == Method::kReward)
    table.add_refused(
        {"--do_predict", config::Unused::kBool,
         "'tessera classify --model OUTPUT_DIR --do_train false --do_predict --test_file FILE' writes what "
         "a reward model says of texts"});
  train::add_training_arguments(table, o.training, train::LossFlags::kOwn);
  add_job_flags(table, o, "Output");
  return table;
}

std::optional<PreferenceOptions> parse_preference(Method method, const std::vector<std::string>& args,
                                                  std::ostream& out) {
  PreferenceOptions o(method);
  config::OptionTable table = preference_table(o);
  config::Problems problems;
  if (parse_task(table, args, problems) == config::ParseResult::kHelp) {
    out << table.help();
    return std::nullopt;
  }
  if (o.training.fp16.value_or(false) && !table.given("--bf16")) o.training.bf16 = false;  // as TRL's configuration
  // Packed layers multiply as in training all the time, and their adapters would drop out with them.
  if (o.disable_dropout && o.quant.packs()) o.adapter.lora_dropout = 0;
  check_job(o, table, measured_names(method), problems);
  check_preference(table, o, problems);
  problems.throw_all();
  return o;
}

}  // namespace tessera::tasks
