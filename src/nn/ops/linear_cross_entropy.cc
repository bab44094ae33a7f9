#include "nn/ops/linear_cross_entropy.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

#include "nn/composite/composite.h"
#include "nn/ops/device.h"
#include "nn/ops/head_gradient.h"
#include "nn/ops/label_scores.h"
#include "nn/ops/over_rows.h"
#include "tessera/base/error.h"
#include "tessera/nn/linear.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& tensor,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels, const Weight& weight,
                            const CrossEntropyOptions& options, bool want_gradients) {
    const bool is_dft = options.token_loss.kind == TokenLoss::Kind::kDft;
    LabelScoreOptions wanted;
    wanted.predictions = options.predictions != nullptr;
    wanted.label_smoothing = options.token_loss.label_smoothing;
    c10::intrusive_ptr<HeadGradient> weight_gradient;
    auto& gradients = wanted.gradients;
    if (want_gradients && hidden.requires_grad()) gradients.hidden = at::empty_like(hidden);
    if (want_gradients && weight.trains()) weight_gradient = c10::make_intrusive<HeadGradient>(tensor);
    if (want_gradients && bias && bias->requires_grad())
      gradients.bias = at::zeros(bias->sizes(), bias->options().dtype(at::kFloat));
    gradients.weight = weight_gradient.get();
    wanted.factor = [is_dft, factor = static_cast<float>(-options.loss_scale / options.normalizer)](
                        std::int64_t, float score) { return is_dft ? factor * std::exp(score) : factor; };
    const LogitHead head{weight, bias.value_or(at::Tensor()), static_cast<float>(options.scale),
                         static_cast<float>(options.softcap)};
    const auto made = label_scores(hidden, head, labels, wanted);
    if (options.predictions) *options.predictions = at::tensor(made.predictions, labels.options());
    double total = 0;
    const auto* score = made.scores.const_data_ptr<float>();
    for (std::int64_t r = 0; r < hidden.size(0); ++r) total -= is_dft ? score[r] * std::exp(score[r]) : score[r];
    ctx->saved_data["loss_scale"] = options.loss_scale;
    if (gradients.hidden.defined()) ctx->saved_data["gh"] = gradients.hidden;
    if (weight_gradient) ctx->saved_data["gw"] = c10::IValue::make_capsule(weight_gradient);
    if (gradients.bias.defined()) ctx->saved_data["gb"] = gradients.bias.to(bias->scalar_type());
    if (options.weight_gradient && weight_gradient && !weight_gradient->is_collected())
      ctx->saved_data["slot"] = c10::IValue::make_capsule(options.weight_gradient);
    return at::scalar_tensor(total / options.normalizer,
                             hidden.options().dtype(options.loss_dtype.value_or(hidden.scalar_type())));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const double factor = grads[0].to(at::kDouble).item<double>() / ctx->saved_data["loss_scale"].toDouble();
    const auto scale = [&](const at::Tensor& g) {
      if (factor == 1.0) return;
      g.scalar_type() == at::kHalf ? g.copy_(g.to(at::kFloat).mul_(factor)) : g.mul_(factor);  // may pass 65504
    };
    const auto take = [&](const char* name) { return std::exchange(ctx->saved_data[name], c10::IValue()); };
    const auto hidden_grad = take("gh"), weight_grad = take("gw"), bias_grad = take("gb"), slot = take("slot");
    TESSERA_CHECK((!ctx->needs_input_grad(0) || hidden_grad.isTensor()) &&
                      (!ctx->needs_input_grad(1) || weight_grad.isCapsule()) &&
                      (!ctx->needs_input_grad(2) || bias_grad.isTensor()),
                  "linear_cross_entropy runs backward once");
    at::Tensor gh, gw, gb;
    if (hidden_grad.isTensor()) scale(gh = hidden_grad.toTensor());
    if (bias_grad.isTensor()) scale(gb = bias_grad.toTensor());
    if (weight_grad.isCapsule()) {
      auto made = c10::static_intrusive_pointer_cast<HeadGradient>(weight_grad.toCapsule());
      scale(made->value());
      const auto shared =
          slot.isCapsule() ? c10::static_intrusive_pointer_cast<SharedGradient>(slot.toCapsule()) : GradientSlot();
      gw = made->hand_over(shared);
    }
    return {gh, gw, gb, {}, {}, {}, {}};
  }
};

}  // namespace

bool may_read_head(const Linear& head, const at::Tensor& input) {
  return !head.hooked() && head.multiplies_values() && (!head.codec() || input.is_cpu());
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options) {
  TESSERA_CHECK(hidden.dim() == 2 && labels.dim() == 1 && hidden.size(0) == labels.size(0), "one label for each row");
  if (!has_kernels(hidden)) {
    return composite::linear_cross_entropy(hidden, weight.dequantise(hidden.scalar_type()), labels, options);
  }
  const auto dense_labels = labels.contiguous();
  return LinearCrossEntropy::apply(hidden.contiguous(), weight.tensor(), optional(options.bias), dense_labels, weight,
                                   options, at::GradMode::is_enabled());
}

}  // namespace tessera::nn
