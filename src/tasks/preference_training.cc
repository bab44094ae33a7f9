#include "tasks/preference_training.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>

#include "report/progress.h"
#include "tasks/find_non_finite.h"
#include "tasks/row_sampler.h"
#include "tasks/training_job.h"
#include "tessera/nn/adapter.h"
#include "tessera/nn/linear.h"
#include "train/seconds.h"

namespace tessera::tasks {
namespace {

/// Evaluation mode while it lives; then every module is as it was, packed layers of a model without dropout, too.
class EvaluationMode {
 public:
  explicit EvaluationMode(models::Model& model) {
    for (const auto& module : model.modules()) before_.emplace_back(module, module->is_training());
    model.eval();
  }
  ~EvaluationMode() {
    for (const auto& [module, training] : before_) module->train(training);  // parents first: it goes down the tree
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

/// Of both sides of these rows, as far as they are not cut.
std::int64_t tokens_of(const PreferenceRows& data, const std::vector<std::int64_t>& rows) {
  const auto most = data.collate.max_length;
  std::int64_t tokens = 0;
  for (const auto row : rows) {
    const auto [chosen, rejected] = data.rows->lengths(row);
    for (const auto length : {chosen, rejected}) tokens += most > 0 ? std::min(most, length) : length;
  }
  return tokens;
}

at::Tensor numbers(const std::vector<std::int64_t>& rows) {
  return at::tensor(rows, at::TensorOptions().dtype(at::kLong));
}

ReferenceLogps picked(const ReferenceLogps& all, const std::vector<std::int64_t>& rows) {
  const auto index = numbers(rows);
  ReferenceLogps out;
  if (all.completions.defined()) out.completions = all.completions.index_select(1, index);
  if (all.mismatched.defined()) out.mismatched = all.mismatched.index_select(0, index);
  return out;
}

ReferenceLogps reference_of(models::Model& model, const ReferencePolicy& reference, const PreferencePart& part,
                            const std::vector<std::int64_t>& mine, const preference::Objective& objective) {
  switch (reference.source) {
    case ReferencePolicy::Source::kNone:
      return {};
    case ReferencePolicy::Source::kPrecomputed:
      return picked(reference.precomputed, mine);
    case ReferencePolicy::Source::kAdapterOff: {
      const nn::AdaptersOff base;
      return logps_of_part(model, part, objective);
    }
  }
  return {};
}

}  // namespace

PreferencePart make_part(const PreferenceRows& data, const std::vector<std::int64_t>& mine, std::int64_t first,
                         std::int64_t all, const preference::Objective& objective) {
  std::vector<data::PreferenceRow> rows;
  for (const auto number : mine) rows.push_back(data.rows->row(number));
  PreferencePart part;
  part.batch =
      objective.sides() == 1 ? data::collate_unpaired(rows, data.collate) : data::collate_pairs(rows, data.collate);
  if (objective.needs_mismatched())
    part.mismatched = data::collate_mismatched(*data.rows, mine, data.mismatch_group, data.collate);
  std::vector<std::int64_t> ids;  // two rows of a pair draw different numbers
  for (std::int64_t side = 0; side < objective.sides(); ++side)
    for (const auto number : mine) ids.push_back(number * objective.sides() + side);
  if (ids.empty()) ids.assign(static_cast<std::size_t>(part.batch.input_ids.size(0)), -1);
  part.row_ids = numbers(ids);
  part.first = mine.empty() ? 0 : first;
  part.all = all;
  return part;
}

ReferenceLogps precompute(models::Model& model, const PreferenceRows& data, const std::vector<std::int64_t>& rows,
                          std::int64_t per_device_batch, const preference::Objective& objective,
                          comm::Communicator& group, const report::BarStyle& bars, std::ostream& err) {
  const EvaluationMode mode(model);
  const auto count = rows.empty() ? data.rows->size() : static_cast<std::int64_t>(rows.size());
  data::EpochSampler sampler({.rows = count,
                              .per_device_batch = per_device_batch,
                              .rank = group.rank(),
                              .world_size = group.size(),
                              .shuffle = false,
                              .last_batch = data::LastBatch::kKeep});
  ReferenceLogps out;
  out.completions = at::zeros({objective.sides(), data.rows->size()}, at::kDouble);
  if (objective.needs_mismatched()) out.mismatched = at::zeros({data.rows->size()}, at::kDouble);
  report::ProgressBar bar(err, bars, sampler.batches_per_epoch(), "reference");
  for (std::int64_t b = 0; b < sampler.batches_per_epoch(); ++b) {
    auto mine = sampler.next();
    if (!rows.empty())
      for (auto& number : mine) number = rows[static_cast<std::size_t>(number)];
    const auto logps = logps_of_part(model, make_part(data, mine, 0, sampler.rows_of_all(b), objective), objective);
    bar.update();
    if (mine.empty()) continue;
    out.completions.index_copy_(1, numbers(mine), logps.completions);
    if (out.mismatched.defined()) out.mismatched.index_copy_(0, numbers(mine), logps.mismatched);
  }
  bar.close();
  for (const auto& t : {out.completions, out.mismatched})
    if (t.defined()) group.all_reduce(t.view({-1}), comm::ReduceOp::kSum)->wait();
  return out;
}

PreferenceTrainable::PreferenceTrainable(models::Model& model, const PreferenceRows& data,
                                         const preference::Objective& objective, const ReferencePolicy& reference,
                                         const train::TrainingArguments& arguments, bool drops_out,
                                         comm::Communicator& group)
    : model_(model),
      group_(group),
      data_(data),
      objective_(objective),
      reference_(reference),
      drops_out_(drops_out),
      embedding_noise_(arguments.neftune_noise_alpha),
      mine_(row_sampler(data.rows->size(), arguments, group, false)),
      all_(row_sampler(data.rows->size(), arguments, group, true)),
      per_device_(arguments.per_device_train_batch_size) {}

at::Tensor PreferenceTrainable::loss(std::int64_t epoch, std::int64_t batch, double normalizer) {
  mine_.seek({epoch, batch});
  const auto mine = mine_.next();
  note_rows(mine);
  auto part = make_part(data_, mine, group_.rank() * per_device_, mine_.rows_of_all(batch), objective_);
  part.first_draw = train::first_draw_of_epoch(epoch);
  part.embedding_noise = embedding_noise_;
  const auto reference = reference_of(model_, reference_, part, mine, objective_);
  const auto step = preference_step(model_, part, reference, objective_, group_);
  metrics_.push_back(step.result.metrics);
  return step.loss / normalizer;
}

void PreferenceTrainable::set_training(bool training) {
  model_.train(training && drops_out_);
  if (drops_out_ || !training) return;
  // Nothing drops out, but packed layers must multiply as in training.
  for (const auto& module : model_.modules(/*include_self=*/false)) {
    auto* linear = dynamic_cast<nn::Linear*>(module.get());
    if (linear && linear->codec()) linear->train();
  }
}

std::int64_t PreferenceTrainable::input_tokens(std::int64_t epoch, std::int64_t batch) {
  all_.seek({epoch, batch});
  return tokens_of(data_, all_.next());
}

std::string PreferenceTrainable::find_non_finite(std::int64_t epoch, std::int64_t batch) {
  return tasks::find_non_finite(model_, [&] { (void)loss(epoch, batch, 1.0); });
}

std::vector<std::int64_t> PreferenceTrainable::rows_drawn(std::int64_t batches) {
  if (batches >= all_.batches_per_epoch()) return {};
  all_.seek({0, 0});
  std::vector<std::int64_t> out;
  for (std::int64_t b = 0; b < batches; ++b) {
    const auto rows = all_.next();
    out.insert(out.end(), rows.begin(), rows.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

ShownPreferences::ShownPreferences(models::Model& model, const PreferenceRows& data,
                                   const preference::Objective& objective, const train::TrainingArguments& arguments,
                                   const comm::Communicator& group)
    : model_(model),
      data_(data),
      objective_(objective),
      mine_(row_sampler(data.rows->size(), arguments, group, /*all_ranks=*/false)) {}

at::Tensor ShownPreferences::loss(std::int64_t epoch, std::int64_t batch, double) {
  mine_.seek({epoch, batch});
  show_part(model_, make_part(data_, mine_.next(), 0, mine_.rows_of_all(batch), objective_), objective_);
  return at::zeros({});
}

train::Metrics evaluate_preferences(models::Model& model, const PreferenceRows& data,
                                    const preference::Objective& objective, const ReferencePolicy& reference,
                                    const train::TrainingArguments& arguments, comm::Communicator& group,
                                    const report::BarStyle& bars, std::ostream& err) {
  const auto start = train::Clock::now();
  const EvaluationMode mode(model);
  const c10::NoGradGuard no_grad;
  const auto per_device = arguments.per_device_eval_batch_size;
  data::EpochSampler sampler({.rows = data.rows->size(),
                              .per_device_batch = per_device,
                              .rank = group.rank(),
                              .world_size = group.size(),
                              .shuffle = false,
                              .last_batch = data::LastBatch::kKeep});
  report::ProgressBar bar(err, bars, sampler.batches_per_epoch(), "eval");
  double loss = 0, tokens = 0;
  train::MetricMeans means;
  for (std::int64_t b = 0; b < sampler.batches_per_epoch(); ++b) {
    const auto mine = sampler.next();
    const auto all = sampler.rows_of_all(b);
    const auto part = make_part(data, mine, group.rank() * per_device, all, objective);
    const auto logps = reference_of(model, reference, part, mine, objective);
    const auto step = preference_step(model, part, logps, objective, group);
    bar.update();
    loss += step.result.loss.item<double>() * static_cast<double>(all);
    tokens += static_cast<double>(tokens_of(data, mine));
    means.add(step.result.metrics);
  }
  bar.close();
  train::Metrics metrics = {{"eval_loss", loss / static_cast<double>(data.rows->size())}};
  metrics.emplace_back("eval_num_tokens", train::sum_over_ranks(group, tokens));
  for (const auto& [name, value] : means.values()) metrics.emplace_back("eval_" + name, value);
  return timed_metrics(std::move(metrics), train::seconds_since(start), data.rows->size(), sampler.batches_per_epoch());
}

}  // namespace tessera::tasks
