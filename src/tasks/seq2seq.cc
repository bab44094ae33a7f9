#include "tasks/seq2seq.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file.h"
#include "report/progress.h"
#include "tasks/seq2seq_data.h"
#include "tessera/base/error.h"
#include "train/results.h"

namespace tessera::tasks {
namespace {

using Json = nlohmann::ordered_json;

std::string majority_line(const std::vector<std::string>& labels) {
  std::map<std::string, std::size_t> counts;
  for (const auto& label : labels) ++counts[label];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end()) return {};
  return fmt::format("(always answering '{}' would give accuracy={:.4f})", most->first,
                     100.0 * static_cast<double>(most->second) / static_cast<double>(labels.size()));
}

constexpr std::size_t kShown = 10;

std::string first_ten(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (std::size_t i = 0; i < std::min(kShown, texts.size()); ++i) quoted.push_back("'" + texts[i] + "'");
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

class Seq2SeqJob final : public TrainingJob, public train::Presentation {
 public:
  Seq2SeqJob(const Seq2SeqOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
             std::ostream& err)
      : TrainingJob(options, models::ModelKind::kSeq2Seq, std::move(group), out, err), o_(options) {}

 private:
  void load_data() override {
    data_ = load_seq2seq_data(o_, tokenizer_path_);
    tokenizer_ = data_.tokenizer;
    for (const auto& note : data_.notes) notes_.push_back(note);
    if (arguments_.do_train || !o_.predict.do_predict)
      require_rows_to_evaluate(data_.validation.rows.size(), "no rows are held out: give a --validation_split above 0");
  }

  std::vector<PreparedRows> prepared() const override {
    return prepared_rows(&data_.train.rows, &data_.validation.rows, o_.predict.do_predict ? &data_.test.rows : nullptr);
  }

  void check_model() override {
    for (const auto* set : {&data_.train, &data_.validation, &data_.test})
      require_ids_below(set->rows, model_.config.vocab_size, tokenizer_path_);
  }

  std::int64_t longest_row() const override { return data::longest_rows(data_.train.rows, data_.train.collate).target; }
  std::int64_t longest_source() const override {
    return data::longest_rows(data_.train.rows, data_.train.collate).source;
  }

  std::unique_ptr<train::Trainable> trainable() override {
    return std::make_unique<PairTrainable>(*model_.model, data_.train.rows, data_.train.collate, arguments_, *group_);
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = data_.train.rows.size();
    const auto how = evaluated();
    task.num_eval_examples =
        std::min(data_.validation.rows.size(), evaluation_batches(data_.validation.rows, how, group_->size()) *
                                                   how.per_device_batch * group_->size());
    task.evaluate = [this](const report::BarStyle& bars) {
      last_ = evaluate(data_.validation, evaluated(), "eval", bars);
      return last_.metrics("eval");
    };
    if (o_.generate.predict_with_generate)
      task.samples = [this] { return first_texts(); };
    else
      task.presentation = this;
    return task;
  }

  EvaluationOptions evaluated() const { return {arguments_.per_device_eval_batch_size, o_.max_eval_steps}; }

  TextEvaluation evaluate(const PairSet& set, const EvaluationOptions& how, const char* name,
                          const report::BarStyle& bars) {
    const auto generation = evaluation_generates(o_.generate, folder_, model_.config, most_label_tokens(o_, set));
    report::ProgressBar bar(err_, bars, evaluation_batches(set.rows, how, group_->size()), name);
    auto measured = evaluate_texts(*model_.model, set, *tokenizer_, how, generation, *group_, [&] { bar.update(); });
    bar.close();
    return measured;
  }

  bool evaluates_alone() const override { return o_.predict.do_eval && data_.validation.rows.size() > 0; }

  /// As run_summarization.py.
  void predict() override {
    if (!o_.predict.do_predict) return;
    const auto measured = evaluate(data_.test, {arguments_.per_device_eval_batch_size}, "predict",
                                   report::bar_style(group_->rank(), arguments_.disable_tqdm));
    if (group_->rank() != 0) return;
    ensure_writable_folder(arguments_.output_dir);
    nlohmann::json results = train::named_values(measured.metrics("predict"));
    results["predict_samples"] = std::ssize(measured.labels);
    train::save_metrics(arguments_.output_dir, "predict", results);
    out_ << train::metrics_block("predict", results) << std::flush;
    if (!o_.generate.predict_with_generate) return;
    const auto file = arguments_.output_dir + "/generated_predictions.txt";
    write_file_atomically(file, fmt::format("{}", fmt::join(measured.predictions, "\n")));
    out_ << fmt::format("{} predictions saved in {}\n", measured.predictions.size(), file) << std::flush;
  }

  Json first_texts() {
    out_ << texts_shown() << "\n" << std::flush;
    Json rows = Json::array();
    for (std::size_t i = 0; i < std::min(kShown, last_.labels.size()); ++i)
      rows.push_back({{"generated", last_.predictions[i]}, {"label", last_.labels[i]}});
    return rows;
  }

  void on_evaluation(const train::Metrics&, bool at_epoch_end) override {
    if (!at_epoch_end) out_ << evaluation_text() << "\n" << std::flush;
  }

  nlohmann::ordered_json on_epoch_end(const train::EpochReport& epoch, const train::Metrics* metrics, bool) override {
    Json row = {{"epoch", epoch.epoch + 1}, {"train_epoch_loss", epoch.mean_loss}, {"train_seconds", epoch.seconds}};
    out_ << fmt::format("epoch={}: train_ppl={:.6g} train_epoch_loss={:.6g}", epoch.epoch, std::exp(epoch.mean_loss),
                        epoch.mean_loss);
    if (metrics) {
      out_ << " " << evaluation_text();
      row.update({{"eval_epoch_loss", last_.loss}, {"accuracy", last_.accuracy}, {"eval_seconds", last_.seconds}});
    }
    out_ << "\n" << std::flush;
    return row;
  }

  std::string evaluation_text() const {
    return fmt::format("eval_ppl={:.6g} eval_epoch_loss={:.6g}\naccuracy={:.4f} {}\n{}", std::exp(last_.loss),
                       last_.loss, last_.accuracy, majority_line(last_.labels), texts_shown());
  }

  std::string texts_shown() const {
    return fmt::format("eval_preds[:10]={}\nlabels[:10]={}", first_ten(last_.predictions), first_ten(last_.labels));
  }

  const Seq2SeqOptions& o_;
  Seq2SeqData data_;
  TextEvaluation last_;
};

}  // namespace

int seq2seq(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_seq2seq(args, out);
  return options ? run_job<Seq2SeqJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace tessera::tasks
