#include "tasks/sft_training.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tasks/find_non_finite.h"
#include "tasks/row_sampler.h"
#include "tasks/same_snapshot.h"
#include "tasks/training_job.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/packed_weight.h"

namespace tessera::tasks {
namespace {

/// Labels that the model would have chosen. predictions: [B, S], of the token behind each place.
double count_right(const data::SftBatch& batch, const at::Tensor& predictions) {
  if (!predictions.defined()) return 0;
  const std::int64_t length = batch.labels.size(1);
  const at::Tensor expected = batch.labels.narrow(1, 1, length - 1),
                   chosen = predictions.cpu().narrow(1, 0, length - 1);
  at::Tensor right = expected.eq(chosen).logical_and(expected.ne(-100));
  if (batch.position_ids.defined() && !batch.attention_mask.defined()) {  // not from one document into the next
    right = right.logical_and(batch.position_ids.narrow(1, 1, length - 1).ne(0));
  }
  return right.sum().item<double>();
}

}  // namespace

models::ModelInput model_input(const data::SftBatch& batch, double normalizer) {
  models::ModelInput in;
  in.input_ids = batch.input_ids;
  in.attention_mask = batch.attention_mask;
  in.position_ids = batch.position_ids;
  in.labels = batch.labels;
  in.row_ids = batch.row_ids;
  in.loss_normalizer = normalizer;
  in.want_logits = false;
  return in;
}

std::function<void(at::Tensor)> sum_over(comm::Communicator& group) {
  if (group.size() == 1) return {};
  return [&group](at::Tensor t) {
    const at::Tensor here = t.cpu();  // itself, unless a device computes
    group.all_reduce(here, comm::ReduceOp::kSum)->wait();
    if (!t.is_cpu()) t.copy_(here);
  };
}

SftTrainable::SftTrainable(models::Model& model, const data::SftDataset& rows, const data::SftCollateOptions& collate,
                           const train::TrainingArguments& arguments, comm::Communicator& group)
    : model_(model),
      group_(group),
      rows_(rows),
      collate_(collate),
      embedding_noise_(arguments.neftune_noise_alpha),
      mine_(row_sampler(rows.size(), arguments, group, false)),
      all_(row_sampler(rows.size(), arguments, group, true)) {}

std::vector<std::int64_t> SftTrainable::rows_of(data::EpochSampler& sampler, std::int64_t epoch, std::int64_t batch) {
  const auto at = sampler.position();
  if (at.epoch != epoch || at.batch != batch) sampler.seek({epoch, batch});
  return sampler.next();
}

double SftTrainable::loss_tokens(std::int64_t epoch, std::int64_t batch) {
  std::int64_t tokens = 0;
  for (const auto row : rows_of(all_, epoch, batch)) tokens += rows_.label_count(row);
  return static_cast<double>(tokens);
}

std::int64_t SftTrainable::input_tokens(std::int64_t epoch, std::int64_t batch) {
  std::int64_t tokens = 0;
  for (const auto row : rows_of(all_, epoch, batch)) tokens += rows_.length(row);
  return tokens;
}

models::ModelInput SftTrainable::input(std::int64_t epoch, std::int64_t batch, double normalizer) {
  const auto rows = rows_of(mine_, epoch, batch);
  note_rows(rows);
  auto in = model_input(data::collate_sft(rows_, rows, collate_), normalizer);
  in.first_draw = train::first_draw_of_epoch(epoch);
  in.embedding_noise = embedding_noise_;
  in.loss_scale = loss_scale();
  in.sum_over_ranks = sum_over(group_);
  return in;
}

at::Tensor SftTrainable::loss(std::int64_t epoch, std::int64_t batch, double normalizer) {
  return model_(input(epoch, batch, normalizer)).loss;
}

std::string SftTrainable::find_non_finite(std::int64_t epoch, std::int64_t batch) {
  return tasks::find_non_finite(model_, [&] { (void)loss(epoch, batch, 1.0); });
}

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

SftRows load_sft_rows(const SftOptions& o, const std::string& tokenizer_path, comm::Communicator& group,
                      std::vector<std::string>& notes) {
  SftRows rows;
  rows.tokenizer_path = tokenizer_path;
  rows.opened = open_training_tokenizer(o, tokenizer_path);
  rows.data = o.data;
  rows.data.template_place = rows.opened.template_place;
  data::SftDataOptions options = rows.data;
  options.most_rows = rows_to_read(o, o.training, group.size());
  rows.splits = data::load_sft_data(options, rows.opened.tokenizer, notes);
  require_same_snapshot(rows.splits.files, group);
  rows.collate.pad_id = rows.opened.tokenizer->pad_id();
  rows.collate.pad_to_multiple_of = o.pad_to_multiple_of;
  rows.collate.padding_free = o.padding_free;
  return rows;
}

std::int64_t SftRows::longest() const {
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < splits.train->size(); ++i) longest = std::max(longest, splits.train->length(i));
  return longest;
}

void SftRows::check(const models::ModelConfig& model) const {
  require_rows_for(*opened.tokenizer, tokenizer_path, model.vocab_size);
}

std::vector<std::string> evaluation_names(const train::TrainingArguments& arguments) {
  std::vector<std::string> names = {"eval_loss",    "eval_mean_token_accuracy", "eval_num_tokens",
                                    "eval_runtime", "eval_samples_per_second",  "eval_steps_per_second"};
  if (arguments.token_loss.is_plain()) names.insert(names.begin() + 1, "eval_perplexity");
  return names;
}

train::Metrics evaluate(models::Model& model, const data::SftDataset& rows, const data::SftCollateOptions& collate,
                        const train::TrainingArguments& arguments, comm::Communicator& group,
                        const report::BarStyle& bars, std::ostream& err) {
  const auto start = std::chrono::steady_clock::now();
  const bool training = model.is_training();
  model.eval();
  const at::NoGradGuard no_grad;
  data::EpochSampler sampler({.rows = rows.size(),
                              .per_device_batch = arguments.per_device_eval_batch_size,
                              .rank = group.rank(),
                              .world_size = group.size(),
                              .shuffle = false,
                              .last_batch = data::LastBatch::kKeep});
  report::ProgressBar bar(err, bars, sampler.batches_per_epoch(), "eval");
  double loss = 0, tokens = 0, right = 0;
  for (std::int64_t b = 0; b < sampler.batches_per_epoch(); ++b) {
    const data::SftBatch batch = data::collate_sft(rows, sampler.next(), collate);
    models::ModelInput in = model_input(batch, 1.0);
    in.sum_over_ranks = sum_over(group);
    const models::ModelOutput out = model(std::move(in));
    bar.update();
    if (batch.label_count == 0) continue;  // no rows: only to gather units in step with the others
    loss += out.loss.item<double>();
    tokens += static_cast<double>(batch.label_count);
    right += count_right(batch, out.predictions);
  }
  bar.close();
  model.train(training);
  const auto sums = train::sum_over_ranks(group, {loss, tokens, right});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double mean = sums[0] / std::max(1.0, sums[1]);
  train::Metrics metrics = {{"eval_loss", mean}};
  if (arguments.token_loss.is_plain()) metrics.emplace_back("eval_perplexity", std::exp(mean));  // a mean of -log p
  metrics.emplace_back("eval_mean_token_accuracy", sums[2] / std::max(1.0, sums[1]));
  metrics.emplace_back("eval_num_tokens", sums[1]);
  return timed_metrics(std::move(metrics), seconds, rows.size(), sampler.batches_per_epoch());
}

}  // namespace tessera::tasks
