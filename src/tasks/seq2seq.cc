#include "tasks/seq2seq.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "report/progress.h"
#include "tasks/seq2seq_data.h"
#include "tessera/base/error.h"

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

std::string first_ten(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (std::size_t i = 0; i < std::min<std::size_t>(10, texts.size()); ++i) quoted.push_back("'" + texts[i] + "'");
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
    require_rows_to_evaluate(static_cast<std::int64_t>(data_.validation_rows.size()),
                             "no rows are held out: give a --validation_split above 0");
  }

  std::vector<PreparedRows> prepared() const override { return prepared_rows(&data_.train, &data_.validation); }

  void check_model() override {
    require_ids_below(data_.train, model_.config.vocab_size, tokenizer_path_);
    require_ids_below(data_.validation, model_.config.vocab_size, tokenizer_path_);
  }

  std::unique_ptr<train::Trainable> trainable() override {
    return std::make_unique<PairTrainable>(*model_.model, data_.train, data_.collate, arguments_, *group_);
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = static_cast<std::int64_t>(data_.train_rows.size());
    task.presentation = this;
    const EvaluationOptions how{arguments_.per_device_eval_batch_size, o_.max_eval_steps};
    task.num_eval_examples =
        std::min(static_cast<std::int64_t>(data_.validation.rows.size()),
                 evaluation_batches(data_.validation, how, group_->size()) * how.per_device_batch * group_->size());
    task.evaluate = [this, how](const report::BarStyle& bars) {
      const auto batches = evaluation_batches(data_.validation, how, group_->size());
      report::ProgressBar bar(err_, bars, batches, "eval");
      last_ = evaluate(*model_.model, data_, how, *group_, [&] { bar.update(); });
      bar.close();
      return timed_metrics({{"eval_loss", last_.loss}, {"eval_accuracy", last_.accuracy / 100}}, last_.seconds,
                           static_cast<std::int64_t>(last_.labels.size()), batches);
    };
    return task;
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
    return fmt::format("eval_ppl={:.6g} eval_epoch_loss={:.6g}\naccuracy={:.4f} {}\neval_preds[:10]={}\nlabels[:10]={}",
                       std::exp(last_.loss), last_.loss, last_.accuracy, majority_line(last_.labels),
                       first_ten(last_.predictions), first_ten(last_.labels));
  }

  const Seq2SeqOptions& o_;
  Seq2SeqData data_;
  Evaluation last_;
};

}  // namespace

int seq2seq(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_seq2seq(args, out);
  return options ? run_job<Seq2SeqJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace tessera::tasks
