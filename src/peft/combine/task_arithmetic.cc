#include "peft/combine/task_arithmetic.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "tensor/rng.h"

namespace tessera::peft {
namespace {

at::Tensor keep_largest(const at::Tensor& values, double density) {
  const auto mask = at::zeros_like(values).reshape({-1});
  const auto kept = static_cast<std::int64_t>(density * static_cast<double>(values.numel()));
  mask.index_fill_(0, std::get<1>(at::topk(values.abs().reshape({-1}), kept)), 1.0);
  return values * mask.reshape(values.sizes());
}

at::Tensor keep_at_random(const TaskTensor& part, const TaskRule& rule) {
  const auto draws = at::empty_like(part.values, at::MemoryFormat::Contiguous);
  tensor::fill_uniform(draws, tensor::named_key(rule.seed, part.key), 0.0, 1.0);
  return part.values * draws.lt(rule.density).to(at::kFloat) / rule.density;
}

at::Tensor pruned(const TaskTensor& part, const TaskRule& rule) {
  if (rule.pruning == Pruning::kNone || rule.density >= 1) return part.values;
  return rule.pruning == Pruning::kMagnitude ? keep_largest(part.values, rule.density) : keep_at_random(part, rule);
}

/// Where a tensor has the sign that most of all have; a sum of 0 counts as positive.
at::Tensor agreeing(const at::Tensor& stacked, MajoritySign by) {
  const auto signs = stacked.sign();
  const auto total = (by == MajoritySign::kTotal ? stacked : signs).sum(0);
  return signs.eq(total.ge(0).to(at::kFloat) * 2 - 1).to(at::kFloat);
}

}  // namespace

at::Tensor combine_tasks(const std::vector<TaskTensor>& parts, const TaskRule& rule) {
  std::vector<at::Tensor> values;
  std::vector<float> weights;
  for (const auto& part : parts) {
    values.push_back(pruned(part, rule));
    weights.push_back(static_cast<float>(part.weight));
  }
  const auto stacked = at::stack(values);
  std::vector<std::int64_t> shape(static_cast<std::size_t>(stacked.dim()), 1);
  shape[0] = stacked.size(0);
  const auto weighted = stacked * at::tensor(weights).view(shape);
  if (!rule.elects_signs) return weighted.sum(0);
  const auto mask = agreeing(stacked, rule.sign);
  return (weighted * mask).sum(0) / mask.sum(0).clamp_min(1.0);
}

}  // namespace tessera::peft
