#include "tasks/preference_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using preference::Column;
using preference::Completions;
using TokenScores = models::ModelInput::TokenScores;

models::ModelInput tokens_of(const data::PreferenceBatch& batch, const PreferencePart& part) {
  models::ModelInput in;
  in.input_ids = batch.input_ids;
  in.attention_mask = batch.attention_mask;
  in.row_ids = part.row_ids;
  in.first_draw = part.first_draw;
  in.embedding_noise = part.embedding_noise;
  return in;
}

/// 1 where a log-probability is wanted: the completions, of ORPO's chosen rows (the first half) all tokens.
at::Tensor labelled(const data::PreferenceBatch& batch, const preference::Objective& objective) {
  if (!objective.scores_prompts()) return batch.completion_mask;
  const auto half = batch.input_ids.size(0) / 2, rest = batch.input_ids.size(0) - half;
  return at::cat({batch.attention_mask.narrow(0, 0, half), batch.completion_mask.narrow(0, half, rest)});
}

preference::TokenTable score(models::Model& model, const data::PreferenceBatch& batch, const PreferencePart& part,
                             const at::Tensor& wanted, TokenScores scores) {
  auto in = tokens_of(batch, part);
  in.labels = at::where(wanted.ne(0), batch.input_ids, -100);
  in.token_scores = scores;
  in.router_loss = false;
  in.want_logits = false;
  const auto out = model(std::move(in));
  TESSERA_CHECK(out.token_logps.defined(), "a causal model gives log-probabilities");
  return {out.token_logps.cpu(), out.token_statistics.defined() ? out.token_statistics.cpu() : at::Tensor(),
          batch.completion_mask, wanted};
}

void put(std::vector<at::Tensor>& columns, Column column, const at::Tensor& values) {
  columns[static_cast<std::size_t>(column)] = values.to(at::kDouble);
}

/// [sides, rows] without gradient.
at::Tensor sums_of(models::Model& model, const data::PreferenceBatch& batch, const PreferencePart& part,
                   const preference::Objective& objective) {
  const c10::NoGradGuard no_grad;
  const auto tokens = score(model, batch, part, batch.completion_mask, TokenScores::kLogProbs);
  // A part without rows has one row of padding, which nobody counts.
  if (part.batch.rows == 0) return at::zeros({objective.sides(), 0}, at::kDouble);
  return preference::logps_of(tokens, objective.sides(), objective.ld_alpha());
}

/// [kColumns, sides, rows] of this rank, and what keeps its graph alive where it has no rows.
struct LocalTable {
  at::Tensor table, anchor;
};

LocalTable scored_by_classifier(models::Model& model, const PreferencePart& part) {
  const auto logits = model(tokens_of(part.batch, part)).logits.squeeze(-1).to(at::kDouble).cpu();
  const bool empty = part.batch.rows == 0;
  const auto rewards = empty ? at::zeros({2, 0}, at::kDouble) : logits.view({2, -1});
  std::vector<at::Tensor> columns(preference::kColumns, at::zeros(rewards.sizes(), at::kDouble));
  put(columns, Column::kReward, rewards);
  if (part.batch.margins.defined()) put(columns, Column::kMargin, part.batch.margins.unsqueeze(0).expand({2, -1}));
  return {at::stack(columns), logits.sum()};
}

LocalTable scored_by_tokens(models::Model& model, const PreferencePart& part, const ReferenceLogps& reference,
                            const preference::Objective& objective) {
  at::Tensor mismatched;
  if (objective.needs_mismatched())  // before the pass that backward follows
    mismatched = sums_of(model, *part.mismatched, part, objective).view({-1});
  const auto tokens = score(model, part.batch, part, labelled(part.batch, objective), TokenScores::kWithStatistics);
  const auto anchor = tokens.logps.sum();
  if (part.batch.rows == 0) return {at::zeros({preference::kColumns, objective.sides(), 0}, at::kDouble), anchor};
  const auto table = preference::table_of(tokens, objective.sides(), objective.ld_alpha());
  auto columns = table.unbind(0);
  if (objective.needs_reference()) put(columns, Column::kRefLogps, reference.completions);
  if (part.batch.labels.defined()) put(columns, Column::kLabel, part.batch.labels.unsqueeze(0));
  if (mismatched.defined()) {
    put(columns, Column::kKlLogps, mismatched.unsqueeze(0));
    put(columns, Column::kKlRefLogps, reference.mismatched.unsqueeze(0));
  }
  return {at::stack(columns), anchor};
}

/// The whole batch's table: own rows as they are, those of the other ranks without gradient.
Completions whole_table(const at::Tensor& own, const PreferencePart& part, comm::Communicator& group) {
  if (group.size() == 1) return Completions(own);
  auto sizes = own.sizes().vec();
  sizes[2] = part.all;
  const at::Tensor all = at::zeros(sizes, at::kDouble);
  const auto rows = own.size(2), end = part.first + rows;
  if (rows > 0) all.narrow(2, part.first, rows).copy_(own.detach());
  group.all_reduce(all.view({-1}), comm::ReduceOp::kSum)->wait();
  if (rows == 0) return Completions(all);
  return Completions(at::cat({all.narrow(2, 0, part.first), own, all.narrow(2, end, part.all - end)}, 2));
}

}  // namespace

ReferenceLogps logps_of_part(models::Model& model, const PreferencePart& part, const preference::Objective& objective) {
  ReferenceLogps out;
  if (objective.needs_mismatched()) out.mismatched = sums_of(model, *part.mismatched, part, objective).view({-1});
  out.completions = sums_of(model, part.batch, part, objective);
  return out;
}

void show_part(models::Model& model, const PreferencePart& part, const preference::Objective& objective) {
  if (objective.method == preference::Method::kReward)
    (void)scored_by_classifier(model, part);
  else
    (void)score(model, part.batch, part, labelled(part.batch, objective), TokenScores::kLogProbs);
}

PreferenceStep preference_step(models::Model& model, const PreferencePart& part, const ReferenceLogps& reference,
                               const preference::Objective& objective, comm::Communicator& group) {
  const bool classifies = objective.method == preference::Method::kReward;
  const LocalTable local =
      classifies ? scored_by_classifier(model, part) : scored_by_tokens(model, part, reference, objective);
  const auto table = whole_table(local.table, part, group);
  PreferenceStep out{.loss = {}, .result = objective(table), .table = table};
  const auto& loss = out.result.loss;
  const double others = 1.0 - 1.0 / group.size();
  out.loss = part.batch.rows == 0 ? local.anchor * 0 + loss.detach() * (1 - others) : loss - loss.detach() * others;
  return out;
}

}  // namespace tessera::tasks
