#include "tasks/summarize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "checkpoint/torch_state.h"
#include "families/model_folder.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "tasks/fsdp_options.h"
#include "tasks/job.h"
#include "tasks/pair_training.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/random.h"
#include "text/tokenizer.h"

namespace tessera::tasks {
namespace {

/// As the tutorial's: 2022-05-07-08:31:12_PM, local time.
std::string date_of_run() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d-%I:%M:%S_%p", &local)};
}

/// str(round(value, 4))
std::string rounded(double value) {
  std::string text = fmt::format("{:.4f}", value);
  while (text.ends_with('0') && !text.ends_with(".0")) text.pop_back();
  return text;
}

data::TokenizedPairs tokenize_wikihow(std::vector<data::TextPair> rows, const text::Tokenizer& tokenizer,
                                      const SummarizeOptions& o) {
  for (auto& row : rows) {
    row.source = data::clean_wikihow(std::move(row.source));
    row.target = data::clean_wikihow(std::move(row.target));
  }
  return data::tokenize(rows, tokenizer,
                        {.max_source_length = o.max_source_length, .max_target_length = o.max_target_length});
}

/// The whole job on one rank. `out` is rank 0's standard output, nothing elsewhere.
class SummarizeJob {
 public:
  SummarizeJob(const SummarizeOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
               std::ostream& err)
      : o_(options),
        group_(std::move(group)),
        out_(out),
        err_(err),
        bars_(report::bar_style(group_->rank(), o_.disable_tqdm)),
        folder_(families::find_model_folder(o_.model_name_or_path)) {}

  /// False when it was interrupted.
  bool run() {
    manual_seed(static_cast<std::uint64_t>(o_.seed));  // draws differ by row, not by rank
    load_data();
    assemble_model();
    return o_.do_train ? train() : validate_only();
  }

 private:
  void load_data() {
    data::WikiHow rows = data::read_wikihow(o_.data);
    out_ << "dict_keys(['train', 'validation'" << (rows.test_size > 0 ? ", 'test'])\n" : "])\n")
         << fmt::format("Size of train dataset:  ({}, {})\n", rows.train_size, rows.columns)
         << fmt::format("Size of Validation dataset:  ({}, {})\n", rows.validation_size, rows.columns);
    for (const auto& note : rows.notes) out_ << note << "\n";
    if (o_.run_validation && rows.validation.empty()) {
      throw DataError("'" + o_.data.data_dir +
                      "' has no rows to validate on: more rows, or a list all_val.txt that fits, are needed; or train "
                      "with --run_validation false");
    }
    tokenizer_path_ = o_.tokenizer_name_or_path.empty() ? folder_ : o_.tokenizer_name_or_path;
    tokenizer_ = text::open_tokenizer(tokenizer_path_);
    train_ = tokenize_wikihow(std::move(rows.train), *tokenizer_, o_);
    validation_ = tokenize_wikihow(std::move(rows.validation), *tokenizer_, o_);
    collate_ = {.padding = o_.pad_to_max_length ? data::Padding::kMaxLength : data::Padding::kLongest,
                .max_source_length = o_.max_source_length,
                .max_target_length = o_.max_target_length};
  }

  void assemble_model() {
    std::vector<std::string> notes = o_.notes;
    const config::AccelerateConfig settings = summarize_settings(o_, notes);
    trainer_options_.scale_loss = settings.mixed_precision == config::MixedPrecision::kFp16;
    AssembleOptions a;
    a.model_folder = folder_;
    a.seed = static_cast<std::uint64_t>(o_.seed);
    a.fsdp = fsdp_options(settings);
    a.fsdp.device = compute_device(o_.device, settings);
    a.fsdp.gather = o_.gather;
    model_ = assemble(a, group_);
    if (model_.config.kind != models::ModelKind::kSeq2Seq) {
      throw ConfigError("'" + folder_ + "' holds a " + model_.config.model_type +
                            ", not an encoder-decoder model; tessera sft trains causal ones",
                        "model_name_or_path");
    }
    require_ids_below(train_, model_.config.vocab_size, tokenizer_path_);
    require_ids_below(validation_, model_.config.vocab_size, tokenizer_path_);
    describe(model_, o_.print_model, out_);
    for (const auto& note : notes) out_ << note << "\n";
  }

  bool train() {
    PairTrainable task(*model_.model, train_, collate_, o_.batch_size, o_.seed, *group_);
    optim::AdamW optimizer(model_.sharded->parameters(), fsdp::parameter_slices(*model_.sharded), {.lr = o_.lr});
    optimizer.keep_state_in(model_.sharded->state_home());
    trainer_options_.num_train_epochs = static_cast<double>(o_.epochs);
    trainer_options_.learning_rate = o_.lr;
    trainer_options_.lr_scheduler_type = "step";
    trainer_options_.lr_scheduler_kwargs =
        nlohmann::json{{"step_size", task.batches_per_epoch()}, {"gamma", o_.gamma}}.dump();
    train::Trainer trainer(trainer_options_, task, *model_.sharded, optimizer);
    train::RunCheckpoints checkpoints(o_.checkpoints, checkpoint_content(), trainer, *model_.sharded, optimizer,
                                      trainer_options_, o_.batch_size, out_);
    metrics_ = open_metrics(*group_, o_.checkpoints.output_dir, o_.metrics_file);
    date_ = group_->broadcast_object(date_of_run(), 0);
    out_ << "--> current date and time of run = " << date_ << "\n" << std::flush;
    checkpoints.resume();
    best_loss_ = checkpoints.state().best_metric.value_or(best_loss_);
    std::unique_ptr<report::ProgressBar> bar;
    train::TrainerCallbacks callbacks = checkpoints.callbacks();
    callbacks.on_step = [&](const train::StepReport& step) {
      if (!bar)
        bar = std::make_unique<report::ProgressBar>(err_, bars_, trainer.steps_per_epoch(), "r0 Training Epoch");
      checkpoints.poll(step);
      on_step(step, *bar);
      checkpoints.after_step(step);
    };
    callbacks.on_epoch_end = [&](const train::EpochReport& epoch) {
      bar.reset();
      on_epoch_end(epoch, epoch.epoch + 1 == trainer.epochs());
      if (std::isfinite(best_loss_)) checkpoints.state().best_metric = best_loss_;
      checkpoints.after_epoch();
    };
    trainer.run(callbacks);
    checkpoints.finish();
    return !checkpoints.interrupted();
  }

  train::CheckpointContent checkpoint_content() {
    train::CheckpointContent content;
    content.save_model = [this](const std::string& folder, checkpoint::SaveQueue& queue) { save_to(folder, &queue); };
    set_torch_state(model_, content);
    return content;
  }

  void on_step(const train::StepReport& step, report::ProgressBar& bar) {
    bar.set_postfix(fmt::format("loss={:.4f}", step.loss));
    bar.update();
    metrics_->write({{"step", step.step},
                     {"epoch", step.epoch},
                     {"loss", step.loss},
                     {"learning_rate", step.learning_rate},
                     {"step_seconds", step.seconds}});
  }

  void on_epoch_end(const train::EpochReport& report, bool is_last) {
    const std::int64_t epoch = report.epoch + 1;
    out_ << fmt::format("Train Epoch: \t{}, Loss: \t{:.4f}\n", epoch, report.mean_loss) << std::flush;
    nlohmann::ordered_json row = {
        {"epoch", epoch}, {"train_loss", report.mean_loss}, {"train_seconds", report.seconds}};
    double loss = std::numeric_limits<double>::infinity();
    if (o_.run_validation) loss = validate_into(row);
    out_ << fmt::format("--> epoch {} completed...entering save and stats zone\n", epoch);
    if (o_.track_memory) {
      out_ << fmt::format("--> epoch {} ", epoch);
      row["memory"] = report_memory(*group_, out_);
    }
    out_ << "completed save and stats zone...\n";
    const bool is_best = loss < best_loss_;
    if (o_.save_model && (is_best || (!o_.run_validation && is_last))) {
      row["saved"] = save(epoch, o_.run_validation ? loss : report.mean_loss);
    }
    if (is_best) {
      best_loss_ = loss;
      out_ << fmt::format("-->>>> New Val Loss Record: {:.5g}\n", loss);
    }
    out_ << std::flush;
    metrics_->write(row);
  }

  bool validate_only() {
    metrics_ = open_metrics(*group_, o_.checkpoints.output_dir, o_.metrics_file);
    nlohmann::ordered_json row;
    validate_into(row);
    out_ << std::flush;
    metrics_->write(row);
    return true;
  }

  double validate_into(nlohmann::ordered_json& row) {
    const double loss = validate();
    out_ << fmt::format("Validation Loss: {:.4f}\n", loss);
    row["validation_loss"] = loss;
    return loss;
  }

  double validate() {
    const EvaluationOptions how{.per_device_batch = o_.test_batch_size};
    report::ProgressBar bar(err_, bars_, evaluation_batches(validation_, how, group_->size()), "Validation Epoch");
    return evaluate_pairs(*model_.model, validation_, collate_, how, *group_,
                          [&](const auto&, const auto&, const auto&) { bar.update(); });
  }

  void save_to(const std::string& folder, checkpoint::SaveQueue* queue = nullptr) {
    save_trained(model_, {folder_, tokenizer_, tokenizer_path_, o_.checkpoints.save_dtype}, folder, queue);
  }

  /// Written under a hidden name: what is called T5-model-... is whole. Returns the path.
  std::string save(std::int64_t epoch, double loss) {
    const std::string prefix = fmt::format("{}-{}", epoch, rounded(loss));
    out_ << "--> entering save model state\n--> saving model ...\n"
         << "--> attempting to save model prefix " << prefix << "\n";
    const std::string name = "T5-model-" + date_ + "-" + prefix;
    const std::string partial =
        group_->broadcast_object(fmt::format("{}/.{}.{}", o_.checkpoints.output_dir, name, ::getpid()), 0);
    std::string saved;
    try {
      save_to(partial);
      if (o_.save_torch_file) checkpoint::save_torch_model(*model_.sharded, partial + ".pt", tied_names());
      if (group_->rank() == 0) {
        saved = give_name(partial, o_.checkpoints.output_dir + "/" + name);
        if (o_.save_torch_file) std::filesystem::rename(partial + ".pt", saved + ".pt");
      }
    } catch (...) {
      std::error_code ignored;
      if (group_->rank() == 0) {
        std::filesystem::remove_all(partial, ignored);
        std::filesystem::remove(partial + ".pt", ignored);
      }
      throw;
    }
    out_ << "--> saving as model name " << saved << "\n" << std::flush;
    return saved;
  }

  /// Under which names T5ForConditionalGeneration's state dict holds the table of tokens besides shared.weight.
  std::vector<checkpoint::TiedName> tied_names() const {
    std::vector<checkpoint::TiedName> out = {{"encoder.embed_tokens.weight", "shared.weight"},
                                             {"decoder.embed_tokens.weight", "shared.weight"}};
    const auto shards = model_.sharded->shards();
    if (std::none_of(shards.begin(), shards.end(), [](const auto& s) { return s.name == "lm_head.weight"; }))
      out.push_back({"lm_head.weight", "shared.weight"});
    return out;
  }

  /// Another run of the same second may hold the name.
  static std::string give_name(const std::string& partial, const std::string& name) {
    std::error_code failure;
    for (int n = 1; n < 100; ++n) {
      const std::string free = n == 1 ? name : fmt::format("{}-{}", name, n);
      std::filesystem::rename(partial, free, failure);
      if (!failure) return free;
      if (!std::filesystem::exists(free)) break;
    }
    throw CheckpointError(fmt::format("cannot rename '{}' to '{}': {}", partial, name, failure.message()), name);
  }

  const SummarizeOptions& o_;
  std::shared_ptr<comm::Communicator> group_;
  std::ostream& out_;
  std::ostream& err_;
  report::BarStyle bars_;
  std::string folder_, tokenizer_path_, date_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<report::MetricsFile> metrics_;
  data::TokenizedPairs train_, validation_;
  data::CollateOptions collate_;
  train::TrainerOptions trainer_options_;
  Assembled model_;
  double best_loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace

int summarize(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_summarize(args, out);
  if (!options) return 0;
  train::prepare_output(options->checkpoints, "");
  auto group = comm::connect();
  std::ostringstream nowhere;
  const bool finished = SummarizeJob(*options, group, group->rank() == 0 ? out : nowhere, err).run();
  group->barrier();
  return finished ? 0 : interrupted_exit_code(*group);
}

}  // namespace tessera::tasks
