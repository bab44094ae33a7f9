#include "tasks/trl_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/open_file.h"
#include "models/causal_lm.h"
#include "tasks/fsdp_options.h"
#include "train/whole_steps.h"

namespace tessera::tasks {
namespace {

using config::Unused;

constexpr config::UnusedFlag kIdleOfTrl[] = {
    {"--use_reentrant", Unused::kBool, "both kinds of checkpointing are the same here"},
    {"--activation_offloading", Unused::kBool, "activations are in host memory; --gradient_checkpointing keeps fewer"},
    {"--trust_remote_code", Unused::kBool, "no code is ever loaded"},
    {"--ignore_bias_buffers", Unused::kBool, "models here have no such buffers"},
};

constexpr config::RefusedFlag kRefusedOfTrl[] = {
    {"--model_init_kwargs", Unused::kText, "give --attn_implementation by itself, and leave the rest out"},
    {"--dataset_mixer", Unused::kText, "TRL's form is a list called datasets, with path, name, split and fraction"},
};

void check_attention(const std::string& name, config::Problems& problems) {
  const std::vector<std::string> known = {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"};
  const bool is_path = name.find('/') != std::string::npos;  // a kernel of somebody's
  problems.require(name.empty() || is_path || std::find(known.begin(), known.end(), name) != known.end(),
                   fmt::format("--attn_implementation expects one of {}, found '{}'", fmt::join(known, ", "), name),
                   "attn_implementation");
}

/// Accelerate makes float32 masters of what trains when FSDP has a mixed precision, whatever dtype it was loaded in,
/// and TRL's configurations have bf16 on unless they are told otherwise: so a command with --dtype bfloat16 trains as
/// with --bf16 here. Training in 16 bits without masters loses small updates.
void check_dtype(const std::string& dtype, JobOptions& job, config::Problems& problems) {
  const auto precision = launch_settings(job.training.bf16, job.training.fp16).mixed_precision;
  const bool is_16_bit = dtype == "bfloat16" || dtype == "auto";
  problems.require(is_16_bit || dtype == "float32" || dtype == "none",
                   fmt::format("--dtype expects one of float32, bfloat16, auto, found '{}'", dtype), "dtype");
  problems.require(!is_16_bit || precision == config::MixedPrecision::kBf16,
                   fmt::format("--dtype {} without mixed precision would train in 16 bits alone, which is not built: "
                               "add --bf16 (bfloat16 computes, what trains has float32 masters), or leave it out",
                               dtype),
                   "dtype");
  if (is_16_bit) job.notes.push_back("--dtype " + dtype + " has no effect: --bf16 says it; masters stay float32");
}

void check_mixture(const TrlFlags& flags, JobOptions& job, data::DatasetOptions& dataset) {
  if (flags.datasets.empty() && flags.dataset_mixture.empty()) {
    if (!dataset.dataset_name.empty()) return;
    throw ConfigError("--dataset_name is required (or --datasets, a list of several)", "dataset_name");
  }
  if (!flags.datasets.empty() && !flags.dataset_mixture.empty())
    throw ConfigError("--datasets and --dataset_mixture exclude each other", "dataset_mixture");
  data::Mixture& mixture = dataset.mixture;
  if (flags.dataset_mixture.empty()) {
    mixture.parts = data::parse_mixture(flags.datasets);
    mixture.test_split_size = flags.test_split_size;
    mixture.seed = job.training.seed;
  } else {
    mixture = data::parse_handbook_mixture(flags.dataset_mixture);
    job.notes.push_back("--dataset_mixture: the rows are those that the handbook draws, in the order of the files");
  }
  if (!dataset.dataset_name.empty()) job.notes.push_back("--dataset_name has no effect: " + mixture.flag + " is given");
  const bool has_shares = std::any_of(mixture.parts.begin(), mixture.parts.end(),
                                      [](const auto& part) { return part.fraction || part.weight; });
  if (flags.dataset_streaming && (has_shares || mixture.test_split_size))
    throw ConfigError("--dataset_streaming reads no further than the steps need, so it does not go with shares of " +
                          mixture.flag + " or with test_split_size",
                      "dataset_streaming");
}

}  // namespace

void add_trl_model_flags(config::OptionTable& table, TrlFlags& flags) {
  const char* group = "Model";
  table.add(
      &flags.attn_implementation, {"--attn_implementation"},
      "eager: as transformers' eager code, where it differs (Falcon's linear biases); other values change nothing",
      group);
  table.add(&flags.dtype, {"--dtype", "--torch_dtype"},
            "float32; bfloat16 and auto with --bf16 only, where they change nothing: what trains has float32 masters",
            group);
  table.add(&flags.model_revision, {"--model_revision"}, "of a model on the Hub: a branch, a tag or a commit", group);
  for (const auto& flag : kIdleOfTrl) table.add_without_effect(flag);
  for (const auto& flag : kRefusedOfTrl) table.add_refused(flag);
}

void add_router_flag(config::OptionTable& table, TrlFlags& flags) {
  table.add(&flags.router_aux_loss_coef, {"--router_aux_loss_coef"},
            "weight of the experts' balance in the loss of a mixture of experts; none: config.json's; 0: without it",
            "Loss");
}

double balance_weight(const TrlFlags& flags, const models::Model& model) {
  const auto* decoder = dynamic_cast<const models::CausalLm*>(&model);
  const bool has_experts = decoder && decoder->experts().count > 0;
  if (!has_experts && flags.router_aux_loss_coef.value_or(0) != 0)
    throw ConfigError(fmt::format("--router_aux_loss_coef {} weighs the balance of experts, and this {} has none; "
                                  "leave it out",
                                  *flags.router_aux_loss_coef, model.class_name()),
                      "router_aux_loss_coef");
  return has_experts ? flags.router_aux_loss_coef.value_or(decoder->experts().auxiliary_coefficient) : 0;
}

void weigh_balance(const TrlFlags& flags, models::Model& model) {
  const double weight = balance_weight(flags, model);
  if (auto* decoder = dynamic_cast<models::CausalLm*>(&model)) decoder->weigh_balance(weight);
}

void add_trl_data_flags(config::OptionTable& table, TrlFlags& flags) {
  const char* group = "Data";
  table.add(&flags.dataset_train_split, {"--dataset_train_split"}, "the first of --splits by itself", group);
  table.add(&flags.dataset_test_split, {"--dataset_test_split"}, "the second of --splits by itself", group);
  table.add(
      &flags.dataset_streaming, {"--dataset_streaming", "--streaming"},
      "read only as many rows as --max_steps needs, and train on them in the order of the files "
      "(--train_sampling_strategy). Without it all rows are tokenised first; in neither case are they held in memory",
      group);
  table
      .add(&flags.datasets, {"--datasets"},
           "instead of --dataset_name several data sets, one behind the other: a list of path, name, data_dir, "
           "data_files, split, columns, fraction",
           group)
      .placeholder("JSON");
  table
      .add(&flags.dataset_mixture, {"--dataset_mixture"},
           "the alignment handbook's: datasets (a list of id, config, split, columns, weight), seed, test_split_size",
           group)
      .placeholder("JSON");
  table
      .add(&flags.test_split_size, {"--test_split_size"},
           "rows of --datasets that are held out to evaluate on: below 1 a share, else a number", group)
      .only_with({{"--datasets", {config::kSet}}});
}

void check_trl_flags(const TrlFlags& flags, const config::OptionTable& table, JobOptions& job,
                     data::DatasetOptions& dataset, config::Problems& problems) {
  problems.attempt([&] { check_mixture(flags, job, dataset); });
  problems.require(!flags.dataset_streaming || job.training.max_steps > 0,
                   "--dataset_streaming reads no further than the steps need: say how many with --max_steps",
                   "dataset_streaming");
  if (flags.dataset_streaming && !table.given("--train_sampling_strategy"))
    job.training.train_sampling_strategy = train::SamplingStrategy::kSequential;
  if (flags.dataset_train_split || flags.dataset_test_split) {
    problems.require(!table.given("--splits"),
                     "--splits and --dataset_train_split or --dataset_test_split exclude each other", "splits");
    dataset.splits = flags.dataset_train_split.value_or("train") + "," + flags.dataset_test_split.value_or("test");
  }
  if (flags.model_revision != "main") {
    if (is_there(job.model_name_or_path))
      job.notes.push_back("--model_revision has no effect: a folder has no revisions");
    else
      job.model_name_or_path += "@" + flags.model_revision;
  }
  check_attention(flags.attn_implementation, problems);
  problems.attempt(config::Problems::Source::kHost, [&] { check_dtype(flags.dtype, job, problems); });
}

std::int64_t rows_to_read(const TrlFlags& flags, const train::TrainingArguments& a, int ranks) {
  if (!a.do_train) return 1;
  const double rows = static_cast<double>(a.max_steps) * static_cast<double>(a.gradient_accumulation_steps) *
                      static_cast<double>(a.per_device_train_batch_size) * ranks;
  return flags.dataset_streaming ? train::whole_steps(rows) : 0;
}

}  // namespace tessera::tasks
