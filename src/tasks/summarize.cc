#include "tasks/summarize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/json_text.h"
#include "base/rounded.h"
#include "checkpoint/torch_state.h"
#include "report/progress.h"
#include "tasks/pair_training.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"
#include "train/results.h"
#include "train/seconds.h"

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

data::TokenizedPairs tokenize_wikihow(std::vector<data::TextPair> rows, const text::Tokenizer& tokenizer,
                                      const SummarizeOptions& o) {
  for (auto& row : rows) {
    row.source = data::clean_wikihow(std::move(row.source));
    row.target = data::clean_wikihow(std::move(row.target));
  }
  return data::tokenize(rows, tokenizer,
                        {.max_source_length = o.max_source_length, .max_target_length = o.max_target_length});
}

class SummarizeJob final : public TrainingJob, public train::Presentation {
 public:
  SummarizeJob(const SummarizeOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
               std::ostream& err)
      : TrainingJob(options, models::ModelKind::kSeq2Seq, std::move(group), out, err), o_(options) {}

 private:
  void load_data() override {
    data::WikiHow rows = data::read_wikihow(o_.data);
    out_ << "dict_keys(['train', 'validation'" << (rows.test_size > 0 ? ", 'test'])\n" : "])\n")
         << fmt::format("Size of train dataset:  ({}, {})\n", rows.train_size, rows.columns)
         << fmt::format("Size of Validation dataset:  ({}, {})\n", rows.validation_size, rows.columns);
    for (const auto& note : rows.notes) out_ << note << "\n";
    if (validates() && rows.validation.empty()) {
      throw DataError("'" + o_.data.data_dir +
                      "' has no rows to validate on: more rows, or a list all_val.txt that fits, are needed; or train "
                      "with --run_validation false");
    }
    tokenizer_ = text::open_tokenizer(tokenizer_path_);
    train_ = tokenize_wikihow(std::move(rows.train), *tokenizer_, o_);
    validation_.rows = tokenize_wikihow(std::move(rows.validation), *tokenizer_, o_);
    validation_.collate = {.padding = o_.pad_to_max_length ? data::Padding::kMaxLength : data::Padding::kLongest,
                           .max_source_length = o_.max_source_length,
                           .max_target_length = o_.max_target_length};
  }

  std::vector<PreparedRows> prepared() const override { return prepared_rows(&train_, &validation_.rows); }

  config::AccelerateConfig launch() override { return launched_; }

  void check_model() override {
    require_ids_below(train_, model_.config.vocab_size, tokenizer_path_);
    require_ids_below(validation_.rows, model_.config.vocab_size, tokenizer_path_);
    date_ = group_->broadcast_object(date_of_run(), 0);
  }

  std::int64_t longest_row() const override { return data::longest_rows(train_, validation_.collate).target; }
  std::int64_t longest_source() const override { return data::longest_rows(train_, validation_.collate).source; }

  std::unique_ptr<train::Trainable> trainable() override {
    auto task = std::make_unique<PairTrainable>(*model_.model, train_, validation_.collate, arguments_, *group_);
    if (o_.falls_by_gamma) {
      const auto batches = task->batches_per_epoch(), together = arguments_.gradient_accumulation_steps;
      arguments_.lr_scheduler_kwargs =
          json_text(nlohmann::json{{"step_size", (batches + together - 1) / together}, {"gamma", o_.gamma}});
    }
    out_ << "--> current date and time of run = " << date_ << "\n" << std::flush;
    return task;
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = static_cast<std::int64_t>(train_.rows.size());
    task.num_eval_examples = validation_.rows.size();
    task.presentation = this;
    task.evaluate = [this](const report::BarStyle& bars) { return validate(bars); };
    return task;
  }

  bool validates() const {
    return !arguments_.do_train || arguments_.eval_on_start || arguments_.eval_strategy != train::Interval::kNo;
  }

  train::Metrics validate(const report::BarStyle& bars) {
    const auto start = train::Clock::now();
    const EvaluationOptions how{.per_device_batch = arguments_.per_device_eval_batch_size};
    const auto batches = evaluation_batches(validation_.rows, how, group_->size());
    report::ProgressBar bar(err_, bars, batches, "Validation Epoch");
    train::Metrics metrics;
    if (const auto generation = evaluation_generates(o_.generate, folder_, model_.config, o_.max_target_length)) {
      metrics = evaluate_texts(*model_.model, validation_, *tokenizer_, how, generation, *group_, [&] {
                  bar.update();
                }).metrics("eval");
    } else {
      const double loss = evaluate_pairs(*model_.model, validation_.rows, validation_.collate, how, *group_,
                                         [&](const auto&, const auto&, const auto&) { bar.update(); });
      metrics = timed_metrics({{"eval_loss", loss}}, train::seconds_since(start), validation_.rows.size(), batches);
    }
    bar.close();
    return metrics;
  }

  void say_validation(const train::Metrics& metrics) {
    out_ << fmt::format("Validation Loss: {:.4f}\n", metrics.front().second);
    if (o_.generate.predict_with_generate) out_ << train::python_text(train::named_values(metrics)) << "\n";
    out_ << std::flush;
  }

  void on_evaluation(const train::Metrics& metrics, bool at_epoch_end) override {
    if (!at_epoch_end) say_validation(metrics);
  }

  nlohmann::ordered_json on_epoch_end(const train::EpochReport& report, const train::Metrics* metrics,
                                      bool is_best) override {
    const std::int64_t epoch = report.epoch + 1;
    out_ << fmt::format("Train Epoch: \t{}, Loss: \t{:.4f}\n", epoch, report.mean_loss) << std::flush;
    nlohmann::ordered_json row = {
        {"epoch", epoch}, {"train_loss", report.mean_loss}, {"train_seconds", report.seconds}};
    last_loss_ = metrics ? metrics->front().second : report.mean_loss;
    if (metrics) {
      say_validation(*metrics);
      row["validation_loss"] = last_loss_;
    }
    out_ << fmt::format("--> epoch {} completed...entering save and stats zone\n", epoch);
    if (o_.track_memory) {
      out_ << fmt::format("--> epoch {} ", epoch);
      row["memory"] = report_memory(*group_, out_);
    }
    out_ << "completed save and stats zone...\n";
    last_epoch_ = epoch;
    if (is_best) {
      if (o_.save_model) row["saved"] = save_best(epoch, last_loss_);
      out_ << fmt::format("-->>>> New Val Loss Record: {:.5g}\n", last_loss_);
    }
    out_ << std::flush;
    return row;
  }

  /// Where nothing chooses among the epochs, the last one is the result.
  void save_result() override {
    if (!validates()) save_best(last_epoch_, last_loss_);
  }
  bool reports_memory() const override { return false; }

  /// Written under a hidden name: what is called T5-model-... is whole. Returns the path.
  std::string save_best(std::int64_t epoch, double loss) {
    const std::string prefix = fmt::format("{}-{}", epoch, json_text(nlohmann::json(rounded(loss, 4))));
    out_ << "--> entering save model state\n--> saving model ...\n"
         << "--> attempting to save model prefix " << prefix << "\n";
    const std::string name = "T5-model-" + date_ + "-" + prefix;
    const std::string partial =
        group_->broadcast_object(fmt::format("{}/.{}.{}", arguments_.output_dir, name, ::getpid()), 0);
    std::string saved;
    try {
      save(partial, nullptr);
      if (o_.save_torch_file) checkpoint::save_torch_model(*model_.sharded, partial + ".pt", tied_names(model_));
      if (group_->rank() == 0) {
        saved = give_name(partial, arguments_.output_dir + "/" + name);
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
  const config::AccelerateConfig launched_ = summarize_settings(o_, notes_);  // which adds a note: once
  std::string date_;
  data::TokenizedPairs train_;
  PairSet validation_;  // the training rows are padded alike
  std::int64_t last_epoch_ = 0;
  double last_loss_ = 0;
};

}  // namespace

int summarize(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_summarize(args, out);
  return options ? run_job<SummarizeJob>(*options, /*result=*/"", out, err) : 0;
}

}  // namespace tessera::tasks
