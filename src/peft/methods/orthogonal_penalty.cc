#include "peft/methods/orthogonal_penalty.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tensor/device.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A A' - I or B' B - I, float32.
at::Tensor deviation(const at::Tensor& factor, bool rows) {
  const auto f = factor.detach().to(at::kFloat);
  const auto product = rows ? at::mm(f, f.t()) : at::mm(f.t(), f);
  return product - at::eye(product.size(0), product.options());
}

at::Tensor norm_of(const at::Tensor& deviation) {
  return at::linalg_vector_norm(deviation.flatten(), 2);
}

class PenalisedFactor : public torch::autograd::Function<PenalisedFactor> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& factor, bool rows, double scale) {
    ctx->save_for_backward({factor});
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["scale"] = scale;
    return factor.detach();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto factor = ctx->get_saved_variables()[0];
    const bool rows = ctx->saved_data["rows"].toBool();
    const auto d = deviation(factor, rows);
    const auto norm = norm_of(d);
    const auto f = factor.detach().to(at::kFloat);
    const auto direction = rows ? at::mm(d, f) : at::mm(f, d);
    const auto penalty = at::where(norm.gt(0), direction * (2 * ctx->saved_data["scale"].toDouble() / norm), 0.0);
    return {grads[0] + penalty.to(grads[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

/// Labels that have a loss.
double counted(const at::Tensor& given_labels, const at::Tensor& given_positions, models::ModelKind kind) {
  const auto labels = tensor::on_host(given_labels), positions = tensor::on_host(given_positions);
  if (kind != models::ModelKind::kCausal) return labels.ne(-100).sum().item<double>();
  const auto predicted = labels.narrow(1, 1, labels.size(1) - 1).ne(-100);
  if (!positions.defined()) return predicted.sum().item<double>();
  return predicted.logical_and(positions.narrow(1, 1, labels.size(1) - 1).ne(0)).sum().item<double>();
}

}  // namespace

at::Tensor OrthogonalPenalty::on(const at::Tensor& factor, Side side) const {
  if (pass_.factor == 0 || factor.numel() == 0) return factor;
  const bool rows = side == Side::kRows;
  const auto [use, is_first] = pass_.uses.try_emplace(factor.unsafeGetTensorImpl(), at::Tensor().getIntrusivePtr());
  auto& made = use->second;
  if (pass_.runs && is_first) {
    const at::NoGradGuard no_grad;
    const auto norm = norm_of(deviation(factor, rows));
    pass_.norms = pass_.norms.defined() ? pass_.norms + norm : norm;
  }
  if (!at::GradMode::is_enabled() || !factor.requires_grad()) return factor;
  if (const at::Tensor same(made.lock()); same.defined()) return same;
  const auto penalised = PenalisedFactor::apply(factor, rows, pass_.factor * pass_.loss_scale);
  made = Weak(penalised.getIntrusivePtr());
  return penalised;
}

models::ModelInput OrthogonalPenalty::prepare(models::ModelInput in) const {
  pass_ = {.runs = true, .loss_scale = in.loss_scale, .norms = at::Tensor(), .uses = {}};
  if (!in.labels.defined() || weight_ == 0) return in;
  const bool documents = in.position_ids.defined() && !in.attention_mask.defined();
  const double share = in.loss_normalizer > 0
                           ? counted(in.labels, documents ? in.position_ids : at::Tensor(), kind_) / in.loss_normalizer
                           : 1.0;
  pass_.factor = weight_ * share / static_cast<double>(factors_);
  return in;
}

models::ModelOutput OrthogonalPenalty::finish(models::ModelOutput out) const {
  pass_.runs = false;
  if (out.loss.defined() && pass_.norms.defined())
    out.loss = (out.loss + pass_.norms.to(out.loss.device()) * pass_.factor).to(out.loss.scalar_type());
  pass_.norms = at::Tensor();
  return out;
}

}  // namespace tessera::peft
