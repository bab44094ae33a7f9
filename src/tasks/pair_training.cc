#include "tasks/pair_training.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "tasks/find_non_finite.h"
#include "tasks/row_sampler.h"
#include "tensor/generators.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

data::EpochSampler evaluation_sampler(const data::TokenizedPairs& rows, const EvaluationOptions& options, int rank,
                                      int world_size) {
  return data::EpochSampler({.rows = static_cast<std::int64_t>(rows.rows.size()),
                             .per_device_batch = options.per_device_batch,
                             .rank = rank,
                             .world_size = world_size,
                             .seed = 0,
                             .shuffle = false,
                             .last_batch = data::LastBatch::kKeep});
}

models::ModelInput pair_input(const data::PairBatch& batch, double normalizer) {
  models::ModelInput in;
  in.input_ids = batch.input_ids;
  in.attention_mask = batch.attention_mask;
  in.labels = batch.labels;
  in.row_ids = batch.row_ids;
  in.loss_normalizer = normalizer;
  in.want_logits = false;
  return in;
}

}  // namespace

PairTrainable::PairTrainable(models::Model& model, const data::TokenizedPairs& rows,
                             const data::CollateOptions& collate, const train::TrainingArguments& arguments,
                             const comm::Communicator& group)
    : model_(model),
      rows_(rows),
      collate_(collate),
      mine_(row_sampler(static_cast<std::int64_t>(rows.rows.size()), arguments, group, false)),
      all_(row_sampler(static_cast<std::int64_t>(rows.rows.size()), arguments, group, true)) {}

double PairTrainable::loss_tokens(std::int64_t epoch, std::int64_t batch) {
  all_.seek({epoch, batch});
  std::size_t tokens = 0;
  for (const auto row : all_.next()) tokens += rows_.rows[static_cast<std::size_t>(row)].target.size();
  return static_cast<double>(tokens);
}

at::Tensor PairTrainable::loss(std::int64_t epoch, std::int64_t batch, double normalizer) {
  mine_.seek({epoch, batch});
  const auto rows = mine_.next();
  note_rows(rows);
  auto in = pair_input(data::collate(rows_, rows, collate_), normalizer);
  in.first_draw = train::first_draw_of_epoch(epoch);
  in.loss_scale = loss_scale();
  return model_(std::move(in)).loss;
}

std::string PairTrainable::find_non_finite(std::int64_t epoch, std::int64_t batch) {
  return tasks::find_non_finite(model_, [&] { (void)loss(epoch, batch, 1.0); });
}

std::int64_t evaluation_batches(const data::TokenizedPairs& rows, const EvaluationOptions& options, int world_size) {
  if (rows.rows.empty()) return 0;
  const auto all = evaluation_sampler(rows, options, 0, world_size).batches_per_epoch();
  return options.max_batches > 0 ? std::min(all, options.max_batches) : all;
}

double evaluate_pairs(models::Model& model, const data::TokenizedPairs& rows, const data::CollateOptions& collate,
                      const EvaluationOptions& options, comm::Communicator& group, const OnPairBatch& on_batch) {
  const c10::AutoGradMode no_grad(false);
  const tensor::RandomGuard random;
  const bool training = model.is_training();
  model.eval();
  data::EpochSampler sampler = evaluation_sampler(rows, options, group.rank(), group.size());
  const auto batches = evaluation_batches(rows, options, group.size());
  double loss_sum = 0, tokens = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    const auto numbers = sampler.next();
    const data::PairBatch batch = data::collate(rows, numbers, collate);
    const models::ModelOutput out = model(pair_input(batch, 1.0));  // the sum
    if (batch.label_count > 0) loss_sum += out.loss.item<double>();
    tokens += static_cast<double>(batch.label_count);
    on_batch(numbers, batch, out);
  }
  model.train(training);
  const auto sums = train::sum_over_ranks(group, {loss_sum, tokens});
  return sums[0] / std::max(1.0, sums[1]);
}

void check_pairs(const JobOptions& o, config::Problems& problems) {
  problems.require(o.training.neftune_noise_alpha == 0,
                   "--neftune_noise_alpha is built for decoders only (tessera sft); leave it out",
                   "neftune_noise_alpha");
}

void require_ids_below(const data::TokenizedPairs& pairs, std::int64_t vocab_size, const std::string& tokenizer) {
  for (const auto& row : pairs.rows) {
    for (const auto* ids : {&row.source, &row.target}) {
      const auto largest = std::max_element(ids->begin(), ids->end());
      if (largest != ids->end() && *largest >= vocab_size) {
        throw DataError(
            fmt::format(
                "the tokenizer '{}' gives id {}, but the model's embedding has {} rows: they do not belong together",
                tokenizer, *largest, vocab_size),
            tokenizer);
      }
    }
  }
}

}  // namespace tessera::tasks
