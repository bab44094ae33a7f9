#pragma once
// `tessera dpo`, `orpo`, `cpo`, `kto` and `reward`: preference training, the programs of TRL 1.16's trainers of these
// names with their flags, fully sharded. One job with five presets.
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/preference_dataset.h"
#include "preference/objective.h"
#include "tasks/training_job.h"
#include "tasks/training_tokenizer.h"
#include "tasks/trl_flags.h"

namespace tessera::tasks {

struct PreferenceOptions : JobOptions, TokenizerFlags, TrlFlags {
  /// TRL's defaults for the trainer of this method.
  explicit PreferenceOptions(preference::Method method);

  preference::Objective objective;
  std::vector<std::string> dpo_losses = {"sigmoid"}, dpo_weights;  // as given, for the objective
  data::PreferenceDataOptions data;
  std::int64_t pad_to_multiple_of = 1;
  bool disable_dropout = true;
  std::string ref_model;  // a folder; empty: the model (without a new adapter) as it is at the start
  bool precompute_ref_log_probs = false;
  std::int64_t precompute_ref_batch_size = 0;  // rows of a rank; 0: per_device_train_batch_size
};

/// "dpo"
const char* name_of(preference::Method method);

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable preference_table(PreferenceOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<PreferenceOptions> parse_preference(preference::Method method, const std::vector<std::string>& args,
                                                  std::ostream& out);

/// Collective: the job on this rank of a group that is connected already. False: it was interrupted.
bool train_preferences(const PreferenceOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
                       std::ostream& err);

int dpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);
int orpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);
int cpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);
int kto(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);
int reward(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
