#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "nn/composite/composite.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/gemm.h"
#include "nn/ops/over_rows.h"
#include "tensor/device_kernels.h"
#include "tessera/base/error.h"

namespace tessera::nn::composite {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What becomes of the logits of some rows, [rows, classes]: they are scaled, and turned into gradients in place.
struct Logits {
  at::Tensor values, labels;
  const CrossEntropyOptions& options;

  /// By the device's kernel: in the dtype that the product gave them, in one pass forward and one backward.
  at::Tensor loss_there(bool backward) {
    const auto& token_loss = options.token_loss;
    const auto losses = at::empty({values.size(0)}, values.options().dtype(at::kFloat));
    const bool dft = token_loss.kind == TokenLoss::Kind::kDft;
    tensor::launch(
        &DeviceKernels::cross_entropy, "cross_entropy", values,
        DeviceCrossEntropy{
            .logits = tensor::written_there(values),
            .dtype = tensor::device_dtype(values.scalar_type()),
            .rows = values.size(0),
            .classes = values.size(1),
            .labels = tensor::read_there<std::int64_t>(labels),
            .losses = tensor::written_there<float>(losses),
            .predictions = options.predictions ? tensor::written_there<std::int64_t>(*options.predictions) : nullptr,
            .scale = static_cast<float>(options.scale),
            .softcap = static_cast<float>(options.softcap),
            .smoothing = dft ? 0 : static_cast<float>(token_loss.label_smoothing),
            .factor = static_cast<float>(options.loss_scale / options.normalizer),
            .dft = dft,
            .backward = backward});
    return losses.sum(at::kDouble);
  }

  /// The sum of the rows' losses, in double; the unscaled gradient where `backward`.
  at::Tensor loss(bool backward) {
    if (tensor::has_device_kernels(values)) return loss_there(backward);
    values = values.to(at::kFloat);
    if (options.scale != 1) values.mul_(options.scale);
    const auto& token_loss = options.token_loss;
    const double smoothing = token_loss.kind == TokenLoss::Kind::kDft ? 0 : token_loss.label_smoothing;
    const auto counts = labels.ge(0).to(at::kFloat).unsqueeze(1), target = labels.clamp_min(0).unsqueeze(1);
    if (options.softcap > 0) values = at::tanh(values / options.softcap) * options.softcap;
    if (options.predictions) options.predictions->copy_(at::argmax(values, -1));
    const auto lse = at::logsumexp(values, 1, /*keepdim=*/true), chosen = values.gather(1, target);
    auto losses = lse - chosen;
    auto factor = counts * (options.scale * options.loss_scale / options.normalizer);
    if (token_loss.kind == TokenLoss::Kind::kDft) {
      const auto p = (-losses).exp();
      losses = losses * p;
      factor = factor * p;
    }
    if (smoothing > 0) losses = losses + (chosen - values.mean(1, /*keepdim=*/true)) * smoothing;
    if (backward) {
      const auto capped = options.softcap > 0 ? values.clone() : at::Tensor();
      values.sub_(lse).exp_();
      values.scatter_add_(1, target, at::full_like(counts, smoothing - 1));
      if (smoothing > 0) values.sub_(smoothing / static_cast<double>(values.size(1)));
      values.mul_(factor);
      if (capped.defined()) values.mul_(capped.div_(options.softcap).square_().neg_().add_(1));
    }
    return (losses * counts).sum(at::kDouble);
  }
};

constexpr std::int64_t kPiecesOfWeight = 4;

/// sum += a b, sum in float32.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (has_wide_gemm(a))
    gemm_add(sum, a, b);
  else
    sum.add_(at::mm(a, b));
}

struct Pieces {
  std::int64_t logits;
  bool gradients;
};

/// By pieces of rows, whose logits become gradients at once and are dropped.
struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            const CrossEntropyOptions& options, Pieces pieces) {
    const auto rows = hidden.size(0);
    auto step = std::max<std::int64_t>(1, pieces.logits / std::max<std::int64_t>(1, weight.size(0)));
    // The weight's gradient is read and written once a piece: a few are enough.
    if (pieces.gradients && weight.requires_grad())
      step = std::max(step, (rows + kPiecesOfWeight - 1) / kPiecesOfWeight);
    at::Tensor gh, gw, gb;
    if (pieces.gradients && bias && bias->requires_grad())
      gb = at::zeros(bias->sizes(), bias->options().dtype(at::kFloat));
    if (pieces.gradients && hidden.requires_grad()) gh = at::empty_like(hidden);
    if (pieces.gradients && weight.requires_grad()) gw = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
    if (options.predictions) *options.predictions = at::empty({rows}, labels.options());
    auto total = at::zeros({}, hidden.options().dtype(at::kDouble));
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const auto count = std::min(step, rows - begin);
      const auto h = hidden.narrow(0, begin, count);
      auto here = options;
      at::Tensor predictions;
      if (options.predictions) {
        predictions = options.predictions->narrow(0, begin, count);
        here.predictions = &predictions;
      }
      Logits logits{at::linear(h, weight, bias), labels.narrow(0, begin, count), here};
      total.add_(logits.loss(gh.defined() || gw.defined() || gb.defined()));
      const auto g = logits.values.to(hidden.scalar_type());
      if (gh.defined()) gh.narrow(0, begin, count).copy_(at::mm(g, weight));
      if (gw.defined()) add_product(gw, g.t(), h);
      if (gb.defined()) gb.add_(unrounded_column_sums(g));
    }
    context->saved_data["loss_scale"] = options.loss_scale;
    if (gh.defined()) context->saved_data["gh"] = gh;
    if (gw.defined()) context->saved_data["gw"] = gw.to(weight.scalar_type());
    if (gb.defined()) context->saved_data["gb"] = gb.to(bias->scalar_type());
    return (total / options.normalizer).to(options.loss_dtype.value_or(hidden.scalar_type()));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto factor = grads[0].to(at::kFloat) / context->saved_data["loss_scale"].toDouble();
    const auto take = [&](const char* name) {
      const auto made = std::exchange(context->saved_data[name], c10::IValue());
      return made.isTensor() ? made.toTensor().mul_(factor) : at::Tensor();
    };
    const auto gh = take("gh"), gw = take("gw"), gb = take("gb");
    TESSERA_CHECK((!context->needs_input_grad(0) || gh.defined()) && (!context->needs_input_grad(1) || gw.defined()) &&
                      (!context->needs_input_grad(2) || gb.defined()),
                  "linear_cross_entropy runs backward once");
    return {gh, gw, gb, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options, std::int64_t piece) {
  return LinearCrossEntropy::apply(hidden, weight, optional(options.bias), labels, options,
                                   Pieces{piece, at::GradMode::is_enabled()});
}

}  // namespace tessera::nn::composite
