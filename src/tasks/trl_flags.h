#pragma once
// What all of TRL's training scripts take (ModelConfig, ScriptArguments): what works, what has no effect here, and what
// is refused.
#include <cstdint>
#include <optional>
#include <string>

#include "config/options.h"
#include "data/dataset_options.h"
#include "models/model.h"
#include "tasks/training_job.h"

namespace tessera::tasks {

struct TrlFlags {
  std::string attn_implementation;
  std::string dtype = "float32";  // that weights are loaded in, under the reference's rules: see check_trl_flags()
  std::string model_revision = "main";                                 // a branch, a tag or a commit on the Hub
  std::optional<double> router_aux_loss_coef;                          // of experts; unset: as config.json says
  bool dataset_streaming = false;                                      // read as far as max_steps needs
  std::optional<std::string> dataset_train_split, dataset_test_split;  // the parts of --splits, by themselves
  std::string datasets;                                                // a mixture, as JSON
  std::optional<double> test_split_size;                               // of it
  std::string dataset_mixture;                                         // the alignment handbook's, as JSON
};

void add_trl_model_flags(config::OptionTable& table, TrlFlags& flags);
/// The weight of the experts' balance.
void add_router_flag(config::OptionTable& table, TrlFlags& flags);
/// Of a model's experts, as TRL's trainers take it: the flag's, or config.json's router_aux_loss_coef whatever its
/// output_router_logits says; 0 without experts. ConfigError: the flag weighs experts that the model does not have.
double balance_weight(const TrlFlags& flags, const models::Model& model);
/// The model's loss has it from now on.
void weigh_balance(const TrlFlags& flags, models::Model& model);
/// Behind --splits.
void add_trl_data_flags(config::OptionTable& table, TrlFlags& flags);

/// Adds to the job's notes, and makes `dataset` what the flags of splits and mixtures say.
void check_trl_flags(const TrlFlags& flags, const config::OptionTable& table, JobOptions& job,
                     data::DatasetOptions& dataset, config::Problems& problems);

/// Of the first split: one where none are trained on, with --dataset_streaming what the steps take; 0: all.
std::int64_t rows_to_read(const TrlFlags& flags, const train::TrainingArguments& arguments, int ranks);

}  // namespace tessera::tasks
