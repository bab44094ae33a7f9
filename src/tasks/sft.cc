#include "tasks/sft.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tasks/answer_samples.h"
#include "tasks/same_snapshot.h"
#include "tasks/sft_training.h"
#include "tasks/training_tokenizer.h"
#include "tessera/base/error.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/packed_weight.h"

namespace tessera::tasks {
namespace {

/// Forward, the inputs' gradients and the trained weights' gradients of every matrix, 2 operations each; a table that
/// is only looked up costs nothing.
double flops_per_token(models::Model& model) {
  double matrices = 0, trained = 0, tables = 0;
  bool has_head = false;
  const nn::DenseElements elements(model);
  for (const auto& item : model.named_parameters()) {
    if (item.value().dim() < 2) continue;
    const auto numel = static_cast<double>(elements.of(item.key(), item.value()));
    matrices += numel;
    if (item.value().requires_grad()) trained += numel;
    has_head = has_head || item.key().starts_with("lm_head") || item.key().starts_with("embed_out");
  }
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* table = dynamic_cast<nn::Embedding*>(module.get())) tables += static_cast<double>(table->weight.numel());
  }
  return 4 * (matrices - (has_head ? tables : 0)) + 2 * trained;
}

class SftJob final : public TrainingJob {
 public:
  SftJob(const SftOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out, std::ostream& err)
      : TrainingJob(options, models::ModelKind::kCausal, std::move(group), out, err), o_(options) {}

 private:
  void load_data() override {
    opened_ = open_training_tokenizer(o_, tokenizer_path_);
    tokenizer_ = opened_.tokenizer;
    data::SftDataOptions options = data_options();
    options.most_rows = rows_to_read(o_, arguments_, group_->size());
    splits_ = data::load_sft_data(options, tokenizer_, notes_);
    require_same_snapshot(splits_.files, *group_);
    collate_.pad_id = tokenizer_->pad_id();
    collate_.pad_to_multiple_of = o_.pad_to_multiple_of;
    collate_.padding_free = o_.padding_free;
    if (!splits_.eval && (arguments_.eval_strategy != train::Interval::kNo || arguments_.eval_on_start)) {
      throw ConfigError("--eval_strategy, --eval_on_start or --do_train false asks for evaluations, but '" +
                            o_.data.dataset_name + "' has no second split (--splits '" + o_.data.splits +
                            "'); add one, or leave them out",
                        "eval_strategy");
    }
  }

  data::SftDataOptions data_options() const {
    data::SftDataOptions options = o_.data;
    options.template_place = opened_.template_place;
    return options;
  }

  std::vector<PreparedRows> prepared() const override { return prepared_rows(splits_.train.get(), splits_.eval.get()); }

  void complete(AssembleOptions& options) const override {
    options.attn_implementation = o_.attn_implementation;
    options.min_vocab_size = opened_.min_vocab_size;
  }

  std::int64_t longest_row() const override {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < splits_.train->size(); ++i) longest = std::max(longest, splits_.train->length(i));
    return longest;
  }

  void check_model() override {
    const auto tokens = tokenizer_->vocab_size();
    if (tokens <= model_.config.vocab_size) return;
    throw DataError(
        fmt::format("the tokenizer '{}' has {} tokens, the model's table {} rows: they do not belong together",
                    tokenizer_path_, tokens, model_.config.vocab_size),
        tokenizer_path_);
  }

  std::unique_ptr<train::Trainable> trainable() override {
    return std::make_unique<SftTrainable>(*model_.model, *splits_.train, collate_, arguments_, *group_);
  }

  train::SessionTask session_task() override {
    train::SessionTask task;
    task.num_examples = splits_.train->size();
    task.flops_per_token = flops_per_token(*model_.model);
    task.evaluate = [this](const report::BarStyle& bars) {
      return evaluate(*model_.model, *splits_.eval, collate_, arguments_, *group_, bars, err_);
    };
    if (o_.eval_generate > 0) {
      const auto samples = data::first_samples(data_options(), tokenizer_, o_.eval_generate);
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
    settings.pad_token_id = collate_.pad_id;
    return answer_samples(*model_.model, *tokenizer_, samples, settings, arguments_.per_device_eval_batch_size, out_);
  }

  const SftOptions& o_;
  TrainingTokenizer opened_;
  data::SftSplits splits_;
  data::SftCollateOptions collate_;
};

}  // namespace

int sft(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_sft(args, out);
  return options ? run_job<SftJob>(*options, result_file(*options), out, err) : 0;
}

}  // namespace tessera::tasks
