#include "tasks/preference.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "hub/model_folder.h"
#include "models/causal_lm.h"
#include "tasks/classify_data.h"
#include "tasks/fsdp_options.h"
#include "tasks/preference_training.h"
#include "tasks/same_snapshot.h"
#include "tessera/base/error.h"
#include "tessera/nn/adapter.h"

namespace tessera::tasks {
namespace {

using preference::Method;

models::ModelKind kind_for(Method method) {
  return method == Method::kReward ? models::ModelKind::kSequenceClassification : models::ModelKind::kCausal;
}

/// Everything that trains is part of an adapter: with adapters off the model is what it was.
bool trains_adapters_alone(const models::Model& model) {
  const auto adapters = nn::adapter_parameters(model);
  const auto parameters = model.named_parameters();
  return std::all_of(parameters.begin(), parameters.end(),
                     [&](const auto& item) { return !item.value().requires_grad() || adapters.contains(item.key()); });
}

class PreferenceJob final : public TrainingJob {
 public:
  PreferenceJob(const PreferenceOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
                std::ostream& err)
      : TrainingJob(options, kind_for(options.objective.method), std::move(group), out, err),
        o_(options),
        objective_(options.objective) {}

 private:
  void load_data() override {
    opened_ = open_training_tokenizer(o_, tokenizer_path_);
    tokenizer_ = opened_.tokenizer;
    auto options = o_.data;
    options.template_place = opened_.template_place;
    options.most_rows = rows_to_read(o_, arguments_, group_->size());
    splits_ = data::load_preference_data(options, tokenizer_, notes_);
    require_same_snapshot(splits_.files, *group_);
    require_second_split(splits_.eval != nullptr, o_.data);
    if (objective_.method == Method::kKto && arguments_.do_train && !o_.dataset_streaming) {
      const auto& rows = *splits_.train;
      if (auto note = preference::note_on_balance(objective_.kto, rows.desirable(), rows.size()); !note.empty())
        notes_.push_back(std::move(note));
    }
    train_ = rows_of(*splits_.train);
    if (splits_.eval) eval_ = rows_of(*splits_.eval);
    require_completions();
    if (objective_.method == Method::kReward) {
      const auto known = known_classes(folder_);
      if (known && known->config.num_labels != 1)
        throw ConfigError(fmt::format("'{}' is a classifier of {} classes; a reward model has one (num_labels 1). Give "
                                      "the language model that it was made from",
                                      folder_, known->config.num_labels),
                          "model_name_or_path");
      classes_ = checkpoint::ClassifierNames{
          .labels = {"LABEL_0"}, .problem_type = "regression", .pad_token_id = tokenizer_->pad_id()};
    }
  }

  PreferenceRows rows_of(const data::PreferenceDataset& rows) const {
    const bool is_cut = o_.data.form == data::PreferenceForm::kPairs || o_.data.form == data::PreferenceForm::kUnpaired;
    return {.rows = &rows,
            .collate = {.pad_id = tokenizer_->pad_id(),
                        .pad_to_multiple_of = o_.pad_to_multiple_of,
                        .max_length = is_cut ? o_.data.max_length : 0,
                        .truncation_mode = o_.data.truncation_mode},
            .mismatch_group = arguments_.per_device_train_batch_size};
  }

  /// ORPO and CPO cut completions while they prepare rows, and take means over what is left.
  void require_completions() const {
    if (o_.data.form != data::PreferenceForm::kOwnPrompt) return;
    for (const auto* split : {splits_.train.get(), splits_.eval.get()}) {
      for (std::int64_t i = 0; split && i < split->size(); ++i) {
        const auto row = split->row(i);
        if (!row.chosen.empty() && !row.rejected.empty()) continue;
        throw DataError(
            fmt::format("row {} of the split '{}' has a prompt of {} tokens, which leaves no completion "
                        "within --max_length {}; raise it, or take the row out",
                        i + 1, split == splits_.train.get() ? "train" : "eval", row.prompt.size(), o_.data.max_length),
            o_.data.dataset_name);
      }
    }
  }

  std::vector<PreparedRows> prepared() const override { return prepared_rows(splits_.train.get(), splits_.eval.get()); }

  void complete(AssembleOptions& options) const override {
    options.attn_implementation = o_.attn_implementation;
    options.min_vocab_size = opened_.min_vocab_size;
    if (objective_.method == Method::kReward)
      options.classifier =
          models::ClassifierHead{.config = {.num_labels = 1, .problem = families::ProblemType::kRegression},
                                 .pad_token_id = tokenizer_->pad_id()};
  }

  void check_model() override {
    check_experts();
    if (classes_) classes_->architecture = model_.model->class_name();
    if (!model_.new_weights.empty())
      notes_.push_back(fmt::format("'{}' has no head that gives a reward: a new one begins", folder_));
    if (arguments_.neftune_noise_alpha > 0 && !dynamic_cast<models::CausalLm*>(model_.model.get()))
      throw ConfigError("--neftune_noise_alpha is built for decoders, and '" + folder_ + "' holds a " +
                            model_.config.model_type + "; leave it out",
                        "neftune_noise_alpha");
    require_rows_for(*tokenizer_, tokenizer_path_, model_.config.vocab_size);
  }

  /// DPO and KTO always add their balance in TRL, ORPO and CPO where config.json has output_router_logits.
  void check_experts() const {
    const auto* decoder = dynamic_cast<const models::CausalLm*>(model_.model.get());
    if (!decoder || objective_.method == Method::kReward) return;
    const bool always = objective_.needs_reference() || o_.router_aux_loss_coef;
    const double weight = balance_weight(o_, *decoder);
    if (weight != 0 && (always || decoder->experts().auxiliary_loss))
      throw ConfigError(fmt::format("TRL adds the experts' balance, {} times, to the loss of a {}, which is not built "
                                    "for pairs and labelled answers; --router_aux_loss_coef 0 trains without it",
                                    weight, decoder->class_name()),
                        "router_aux_loss_coef");
  }

  TokenSequences sequences(std::int64_t i) const override {
    const std::vector<data::PreferenceRow> row = {splits_.train->row(i)};
    const auto ids = (objective_.sides() == 1 ? data::collate_unpaired(row, train_.collate)
                                              : data::collate_pairs(row, train_.collate))
                         .input_ids;
    TokenSequences out;
    for (std::int64_t side = 0; side < ids.size(0); ++side) {
      const auto* begin = ids.const_data_ptr<std::int64_t>() + side * ids.size(1);
      out.emplace_back(begin, begin + ids.size(1));
    }
    return out;
  }

  std::int64_t longest_row() const override {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < splits_.train->size(); ++i) {
      const auto [chosen, rejected] = splits_.train->lengths(i);
      longest = std::max({longest, chosen, rejected});
    }
    const auto most = train_.collate.max_length;
    return most > 0 ? std::min(longest, most) : longest;
  }
  std::int64_t rows_of_a_batch() const override { return arguments_.per_device_train_batch_size * objective_.sides(); }

  std::unique_ptr<train::Trainable> trainable() override {
    auto out = std::make_unique<PreferenceTrainable>(*model_.model, train_, objective_, train_reference_, arguments_,
                                                     !o_.disable_dropout, *group_);
    trainable_ = out.get();
    choose_reference(out->rows_drawn(batches_of_run(*out)));
    return out;
  }

  std::unique_ptr<train::Trainable> shown_rows() override {
    return std::make_unique<ShownPreferences>(*model_.model, train_, objective_, arguments_, *group_);
  }

  /// In the first pass over the rows: no fewer than the run takes.
  std::int64_t batches_of_run(const PreferenceTrainable& task) const {
    const auto options = arguments_.trainer_options();
    const auto batches = task.batches_per_epoch();
    const auto steps = std::min(train::total_steps(options, batches), train::steps_per_epoch(options, batches));
    return steps * options.gradient_accumulation_steps;
  }

  bool adapter_is_new() const { return model_.adapters && o_.adapter.adapter_name_or_path.empty(); }

  void choose_reference(const std::vector<std::int64_t>& rows) {
    using Source = ReferencePolicy::Source;
    if (!objective_.needs_reference()) return;
    if (o_.ref_model.empty() && !o_.precompute_ref_log_probs && adapter_is_new() &&
        trains_adapters_alone(*model_.model)) {
      train_reference_.source = eval_reference_.source = Source::kAdapterOff;
      return;
    }
    train_reference_.source = eval_reference_.source = Source::kPrecomputed;
    if (o_.ref_model.empty()) {
      std::optional<nn::AdaptersOff> base;
      if (adapter_is_new()) base.emplace();
      ask(*model_.model, rows);
    } else {
      ask_other_model(rows);
    }
  }

  void ask(models::Model& model, const std::vector<std::int64_t>& rows) {
    const auto batch =
        o_.precompute_ref_batch_size > 0 ? o_.precompute_ref_batch_size : arguments_.per_device_train_batch_size;
    const auto bars = report::bar_style(group_->rank(), arguments_.disable_tqdm);
    if (arguments_.do_train)
      train_reference_.precomputed = precompute(model, train_, rows, batch, objective_, *group_, bars, err_);
    const bool evaluates =
        arguments_.eval_strategy != train::Interval::kNo || arguments_.eval_on_start || !arguments_.do_train;
    if (splits_.eval && evaluates)
      eval_reference_.precomputed = precompute(model, eval_, {}, batch, objective_, *group_, bars, err_);
  }

  /// It is sharded like the model, and gone before the first step.
  void ask_other_model(const std::vector<std::int64_t>& rows) {
    AssembleOptions options;
    options.model_folder = hub::find_model_folder(o_.ref_model);
    options.quantization = o_.quant.quantization();
    options.attn_implementation = o_.attn_implementation;
    const auto settings = launch();
    options.fsdp = fsdp_options(settings);
    options.fsdp.device = device_;
    options.fsdp.gather = o_.gather;
    auto other = assemble(options, group_);
    if (other.config.kind != models::ModelKind::kCausal || other.config.vocab_size < tokenizer_->vocab_size())
      throw ConfigError(
          fmt::format("--ref_model '{}' holds a {} with {} tokens; expected a causal language model for the "
                      "tokenizer's {}",
                      o_.ref_model, other.config.model_type, other.config.vocab_size, tokenizer_->vocab_size()),
          "ref_model");
    for (auto& p : other.model->parameters()) p.set_requires_grad(false);
    ask(*other.model, rows);
  }

  train::SessionTask session_task() override {
    if (!trainable_) choose_reference({});  // an evaluation alone
    train::SessionTask task;
    task.num_examples = splits_.train->size();
    if (splits_.eval) task.num_eval_examples = splits_.eval->size();
    task.evaluate = [this](const report::BarStyle& bars) {
      return evaluate_preferences(*model_.model, eval_, objective_, eval_reference_, arguments_, *group_, bars, err_);
    };
    if (trainable_) task.batch_metrics = [this] { return trainable_->take_metrics(); };
    return task;
  }

  const PreferenceOptions& o_;
  preference::Objective objective_;
  TrainingTokenizer opened_;
  data::PreferenceSplits splits_;
  PreferenceRows train_, eval_;
  ReferencePolicy train_reference_, eval_reference_;
  PreferenceTrainable* trainable_ = nullptr;  // the Trainer's
};

int run_preference(Method method, const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_preference(method, args, out);
  return options ? run_job<PreferenceJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace

bool train_preferences(const PreferenceOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
                       std::ostream& err) {
  return PreferenceJob(options, std::move(group), out, err).run();
}

int dpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  return run_preference(Method::kDpo, args, out, err);
}
int orpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  return run_preference(Method::kOrpo, args, out, err);
}
int cpo(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  return run_preference(Method::kCpo, args, out, err);
}
int kto(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  return run_preference(Method::kKto, args, out, err);
}
int reward(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  return run_preference(Method::kReward, args, out, err);
}

}  // namespace tessera::tasks
