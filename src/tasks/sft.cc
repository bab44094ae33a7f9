#include "tasks/sft.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "tasks/answer_samples.h"
#include "tasks/sft_training.h"
#include "tasks/side_by_side.h"

namespace tessera::tasks {
namespace {

class SftJob final : public TrainingJob {
 public:
  SftJob(const SftOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out, std::ostream& err)
      : TrainingJob(options, models::ModelKind::kCausal, std::move(group), out, err), o_(options) {}

 private:
  void load_data() override {
    rows_ = load_sft_rows(o_, tokenizer_path_, *group_, notes_);
    tokenizer_ = rows_.opened.tokenizer;
    require_second_split(rows_.splits.eval != nullptr, o_.data);
  }

  std::vector<PreparedRows> prepared() const override {
    return prepared_rows(rows_.splits.train.get(), rows_.splits.eval.get());
  }

  void complete(AssembleOptions& options) const override {
    options.attn_implementation = o_.attn_implementation;
    options.min_vocab_size = rows_.opened.min_vocab_size;
  }

  TokenSequences sequences(std::int64_t i) const override {
    const auto row = rows_.splits.train->row(i);
    if (!rows_.splits.train->separate_documents()) return {row.input_ids};
    TokenSequences out;
    auto begin = row.input_ids.begin();
    for (const auto length : row.document_lengths) {
      out.emplace_back(begin, begin + length);
      begin += length;
    }
    return out;
  }

  std::int64_t longest_row() const override { return rows_.longest(); }

  void check_model() override {
    rows_.check(model_.config);
    weigh_balance(o_, *model_.model);
  }

  std::unique_ptr<train::Trainable> trainable() override {
    return std::make_unique<SftTrainable>(*model_.model, *rows_.splits.train, rows_.collate, arguments_, *group_);
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = rows_.splits.train->size();
    if (rows_.splits.eval) task.num_eval_examples = rows_.splits.eval->size();
    task.flops_per_token = flops_per_token(*model_.model);
    task.evaluate = [this](const report::BarStyle& bars) {
      return evaluate(*model_.model, *rows_.splits.eval, rows_.collate, arguments_, *group_, bars, err_);
    };
    if (o_.eval_generate > 0) {
      const auto samples = data::first_samples(rows_.data, tokenizer_, o_.eval_generate);
      task.samples = [this, samples] { return show_answers(samples); };
    }
    return task;
  }

  nlohmann::ordered_json show_answers(const std::vector<data::SftSample>& samples) {
    auto settings = models::read_generation_config(folder_, model_.config);
    settings.do_sample = false;
    settings.max_new_tokens = o_.eval_generate_max_new_tokens;
    const auto& eos = tokenizer_->eos_id();
    if (eos >= 0) settings.eos_token_ids = {eos};
    settings.pad_token_id = rows_.collate.pad_id;
    return answer_samples(*model_.model, *tokenizer_, samples, settings, arguments_.per_device_eval_batch_size, out_);
  }

  const SftOptions& o_;
  SftRows rows_;
};

}  // namespace

int sft(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_sft(args, out);
  if (options && !options->side_by_side.empty()) return train_side_by_side(*options, out, err);
  return options ? run_job<SftJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace tessera::tasks
