#include "tasks/seq2seq.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "families/model_folder.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tasks/job.h"
#include "tasks/seq2seq_data.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/random.h"

namespace tessera::tasks {
namespace {

using Json = nlohmann::ordered_json;

std::string result_file(const Seq2SeqOptions& o) {
  if (!o.save_model || !o.do_train) return {};
  return o.checkpoints.output_dir + (o.adapter.use_peft_lora ? "/adapter_model.safetensors" : "/model.safetensors");
}

AssembleOptions assemble_options(const Seq2SeqOptions& o, const std::string& folder) {
  AssembleOptions a;
  a.model_folder = folder;
  a.adapter_folder = o.adapter.adapter_name_or_path;
  a.seed = static_cast<std::uint64_t>(o.seed);
  a.method = new_adapter(o.adapter, "SEQ_2_SEQ_LM", o.model_name_or_path);
  const config::AccelerateConfig launch = launch_settings(o.bf16, o.fp16);
  a.fsdp = fsdp_options(launch);
  a.fsdp.device = compute_device(o.device, launch);
  a.fsdp.gather = o.gather;
  return a;
}

std::string majority_line(const std::vector<std::string>& labels) {
  std::map<std::string, std::size_t> counts;
  for (const auto& label : labels) ++counts[label];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end()) return {};
  return fmt::format("(always answering '{}' would give accuracy={:.4f})", most->first,
                     100.0 * static_cast<double>(most->second) / static_cast<double>(labels.size()));
}

std::string first_ten(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (std::size_t i = 0; i < std::min<std::size_t>(10, texts.size()); ++i) quoted.push_back("'" + texts[i] + "'");
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

/// The whole job on one rank. `out` is rank 0's standard output, nothing elsewhere.
class Seq2SeqJob {
 public:
  Seq2SeqJob(const Seq2SeqOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
             std::ostream& err)
      : o_(options),
        group_(std::move(group)),
        out_(out),
        err_(err),
        bars_(report::bar_style(group_->rank(), o_.disable_tqdm)),
        folder_(families::find_model_folder(o_.model_name_or_path)),
        tokenizer_path_(o_.tokenizer_name_or_path.empty()
                            ? checkpoint::tokenizer_among({o_.adapter.adapter_name_or_path, folder_})
                            : o_.tokenizer_name_or_path) {}

  /// False when it was interrupted.
  bool run() {
    manual_seed(static_cast<std::uint64_t>(o_.seed));  // draws differ by row, not by rank
    model_ = assemble(assemble_options(o_, folder_), group_);
    data_ = load_seq2seq_data(o_, tokenizer_path_, model_.config.vocab_size);
    describe();
    const bool finished = o_.do_train ? train() : evaluate_only();
    const auto memory = tasks::report_memory(*group_, out_);
    if (finished) metrics_->write({{"memory", memory}});
    return finished;
  }

 private:
  void describe() {
    tasks::describe(model_, o_.print_model, out_);
    for (const auto& note : o_.notes) out_ << note << "\n";
    for (const auto& note : data_.notes) out_ << note << "\n";
  }

  bool train() {
    PairTrainable task(*model_.model, data_.train, data_.collate, o_.per_device_train_batch_size, o_.seed, *group_);
    optim::AdamW optimizer(model_.sharded->parameters(), fsdp::parameter_slices(*model_.sharded),
                           {.lr = o_.trainer.learning_rate,
                            .beta1 = o_.adam_beta1,
                            .beta2 = o_.adam_beta2,
                            .eps = o_.adam_epsilon,
                            .weight_decay = o_.weight_decay});
    optimizer.keep_state_in(model_.sharded->state_home());
    train::Trainer trainer(o_.trainer, task, *model_.sharded, optimizer);
    train::RunCheckpoints checkpoints(o_.checkpoints, checkpoint_content(), trainer, *model_.sharded, optimizer,
                                      o_.trainer, o_.per_device_train_batch_size, out_);
    metrics_ = open_metrics(*group_, o_.checkpoints.output_dir, o_.metrics_file);
    print_banner(trainer);
    checkpoints.resume();
    report::ProgressBar bar(err_, bars_, trainer.total_steps());
    bar.start_at(checkpoints.resumed_at());
    train::TrainerCallbacks callbacks = checkpoints.callbacks();
    callbacks.on_step = [&](const train::StepReport& step) {
      checkpoints.poll(step);
      on_step(step, bar);
      checkpoints.after_step(step);
    };
    callbacks.on_epoch_end = [&](const train::EpochReport& epoch) {
      if (epoch.epoch + 1 == trainer.epochs()) bar.close();
      on_epoch_end(epoch);
      checkpoints.after_epoch();
    };
    trainer.run(callbacks);
    checkpoints.finish();
    if (checkpoints.interrupted()) return false;
    if (o_.save_model) save();  // while this run holds the folder
    return true;
  }

  train::CheckpointContent checkpoint_content() {
    train::CheckpointContent content;
    content.save_model = [this](const std::string& folder, checkpoint::SaveQueue& queue) { save_to(folder, &queue); };
    content.torch_optimizer = {
        .beta1 = o_.adam_beta1, .beta2 = o_.adam_beta2, .eps = o_.adam_epsilon, .weight_decay = o_.weight_decay};
    set_torch_state(model_, content);
    return content;
  }

  void print_banner(const train::Trainer& trainer) {
    const auto total = o_.per_device_train_batch_size * group_->size() * o_.trainer.gradient_accumulation_steps;
    out_ << fmt::format(
                "***** Running training *****\n  Num examples = {}\n  Num Epochs = {}\n  Instantaneous batch size per "
                "device = {}\n"
                "  Total train batch size (w. parallel, distributed & accumulation) = {}\n  Gradient Accumulation "
                "steps = {}\n"
                "  Total optimization steps = {}\n  Number of trainable parameters = {}\n  Ranks = {} ({})\n",
                data_.train_rows.size(), trainer.epochs(), o_.per_device_train_batch_size, total,
                o_.trainer.gradient_accumulation_steps, trainer.total_steps(), model_.trainable, group_->size(),
                group_->backend())
         << std::flush;
  }

  void on_step(const train::StepReport& step, report::ProgressBar& bar) {
    bar.set_postfix(fmt::format("loss={:.4f}", step.loss));
    bar.update();
    if (o_.logging_steps <= 0 || step.step % o_.logging_steps != 0) return;
    Json row = {{"step", step.step}, {"epoch", step.epoch}, {"loss", step.loss}, {"learning_rate", step.learning_rate}};
    if (o_.trainer.max_grad_norm > 0) row["grad_norm"] = step.grad_norm;
    row["step_seconds"] = step.seconds;
    metrics_->write(row);
  }

  void on_epoch_end(const train::EpochReport& epoch) {
    Json row = {{"epoch", epoch.epoch + 1}, {"train_epoch_loss", epoch.mean_loss}, {"train_seconds", epoch.seconds}};
    std::string line = fmt::format("epoch={}: train_ppl={:.6g} train_epoch_loss={:.6g}", epoch.epoch,
                                   std::exp(epoch.mean_loss), epoch.mean_loss);
    if (o_.do_eval && !data_.validation_rows.empty()) line += " " + evaluate_into(row);
    out_ << line << "\n" << std::flush;
    metrics_->write(row);
  }

  /// Returns what is printed.
  std::string evaluate_into(Json& row) {
    const EvaluationOptions how{o_.per_device_eval_batch_size, o_.max_eval_steps};
    report::ProgressBar bar(err_, bars_, evaluation_batches(data_.validation, how, group_->size()), "eval");
    const Evaluation e = evaluate(*model_.model, data_, how, *group_, [&] { bar.update(); });
    bar.close();
    row.update({{"eval_epoch_loss", e.loss}, {"accuracy", e.accuracy}, {"eval_seconds", e.seconds}});
    return fmt::format("eval_ppl={:.6g} eval_epoch_loss={:.6g}\naccuracy={:.4f} {}\neval_preds[:10]={}\nlabels[:10]={}",
                       std::exp(e.loss), e.loss, e.accuracy, majority_line(e.labels), first_ten(e.predictions),
                       first_ten(e.labels));
  }

  bool evaluate_only() {
    if (data_.validation_rows.empty()) {
      throw ConfigError("--do_train false evaluates, but no rows are held out: give a --validation_split above 0",
                        "validation_split");
    }
    metrics_ = open_metrics(*group_, o_.checkpoints.output_dir, o_.metrics_file);
    Json row;
    out_ << evaluate_into(row) << "\n" << std::flush;
    metrics_->write(row);
    return true;
  }

  void save_to(const std::string& folder, checkpoint::SaveQueue* queue = nullptr) {
    save_trained(model_, {folder_, data_.tokenizer, tokenizer_path_, o_.checkpoints.save_dtype}, folder, queue);
  }

  void save() {
    save_to(o_.checkpoints.output_dir);
    out_ << saved_line(model_, o_.checkpoints.output_dir) << std::flush;
  }

  const Seq2SeqOptions& o_;
  std::shared_ptr<comm::Communicator> group_;
  std::ostream& out_;
  std::ostream& err_;
  report::BarStyle bars_;
  std::string folder_, tokenizer_path_;
  std::unique_ptr<report::MetricsFile> metrics_;
  Assembled model_;
  Seq2SeqData data_;
};

}  // namespace

int seq2seq(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_seq2seq(args, out);
  if (!options) return 0;
  train::prepare_output(options->checkpoints, result_file(*options));
  auto group = comm::connect();
  std::ostringstream nowhere;
  const bool finished = Seq2SeqJob(*options, group, group->rank() == 0 ? out : nowhere, err).run();
  group->barrier();
  return finished ? 0 : interrupted_exit_code(*group);
}

}  // namespace tessera::tasks
