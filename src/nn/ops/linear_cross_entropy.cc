#include "nn/ops/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "nn/composite/composite.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/head_gradient.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/rows.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Piece {
  const at::Tensor& logits;    // [rows, classes]; becomes the gradient of the unscaled loss when `backward`
  const std::int64_t* labels;  // of these rows
  const float* bias;           // of the classes, or null
  float scale, softcap;        // of the logits
  float factor;                // of the gradient
  TokenLoss token_loss;
  bool backward;
};

// Losses of the rows into `losses`; serves every dtype through float32 rows.
void rows_loss(const Piece& piece, float* losses, std::int64_t* best) {
  const std::int64_t n = piece.logits.size(1);
  for_rows(piece.logits.size(0), n, [&](std::int64_t first, std::int64_t last) {
    WriteRow out(piece.logits, n);
    std::vector<float> capped;
    for (std::int64_t r = first; r < last; ++r) {
      float* row = out.load(r * n, n);
      if (piece.bias) {
        for (std::int64_t i = 0; i < n; ++i) row[i] += piece.bias[i];
      }
      if (piece.scale != 1.0f) {
        for (std::int64_t i = 0; i < n; ++i) row[i] *= piece.scale;
      }
      if (piece.softcap > 0) kernels::softcap(row, piece.softcap, n);
      if (best) best[r] = kernels::argmax(row, n);
      if (piece.labels[r] < 0) {
        losses[r] = 0;
        if (piece.backward) std::fill(row, row + n, 0.0f);
        out.store();
        continue;
      }
      const float lse = kernels::log_sum_exp(row, n);
      float factor = piece.factor, smoothing = 0;
      losses[r] = lse - row[piece.labels[r]];
      if (piece.token_loss.kind == TokenLoss::Kind::kDft) {
        const float p = std::exp(-losses[r]);
        losses[r] *= p;
        factor *= p;
      } else if (piece.token_loss.label_smoothing > 0) {
        smoothing = static_cast<float>(piece.token_loss.label_smoothing);
        const double mean = std::accumulate(row, row + n, 0.0) / static_cast<double>(n);
        losses[r] += smoothing * (row[piece.labels[r]] - static_cast<float>(mean));
      }
      if (!piece.backward) continue;
      if (piece.softcap > 0) capped.assign(row, row + n);
      kernels::scaled_softmax(row, lse, factor, n);
      row[piece.labels[r]] -= factor * (1 - smoothing);
      if (smoothing > 0) {
        for (std::int64_t i = 0; i < n; ++i) row[i] -= factor * smoothing / static_cast<float>(n);
      }
      if (piece.softcap > 0) kernels::softcap_backward(capped.data(), row, piece.softcap, n);
      out.store();
    }
  });
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            const CrossEntropyOptions& options, bool want_gradients) {
    const std::int64_t rows = hidden.size(0), classes = weight.size(0);
    const std::int64_t step = rows_of_a_piece(hidden, classes);
    const bool hidden_grad = want_gradients && hidden.requires_grad();
    const bool weight_grad = want_gradients && weight.requires_grad();
    const bool bias_grad = want_gradients && bias && bias->requires_grad();
    const auto wide_bias = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    at::Tensor gh, gb;
    if (bias_grad) gb = at::zeros(bias->sizes(), bias->options().dtype(at::kFloat));
    auto gw = weight_grad ? c10::make_intrusive<HeadGradient>(weight) : c10::intrusive_ptr<HeadGradient>();
    if (hidden_grad) gh = at::empty_like(hidden);
    std::vector<float> losses(rows);
    auto* predictions = options.predictions;
    if (predictions) *predictions = at::empty({rows}, labels.options());
    const auto* label = labels.const_data_ptr<std::int64_t>();
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t count = std::min(step, rows - begin);
      const auto h = hidden.narrow(0, begin, count);
      const auto logits = gemm(h, weight.t());
      rows_loss({logits, label + begin, wide_bias.defined() ? wide_bias.const_data_ptr<float>() : nullptr,
                 static_cast<float>(options.scale), static_cast<float>(options.softcap),
                 static_cast<float>(options.scale * options.loss_scale / options.normalizer), options.token_loss,
                 hidden_grad || weight_grad || bias_grad},
                losses.data() + begin, predictions ? predictions->mutable_data_ptr<std::int64_t>() + begin : nullptr);
      if (hidden_grad) gemm_to(gh.narrow(0, begin, count), logits, weight);
      if (gw) gw->add(logits, h, begin == 0);
      if (bias_grad) gb.add_(unrounded_column_sums(logits));
    }
    if (gw && rows == 0) gw->clear(weight);
    double total = 0;
    for (float loss : losses) total += loss;
    ctx->saved_data["loss_scale"] = options.loss_scale;
    if (hidden_grad) ctx->saved_data["gh"] = gh;
    if (gw) ctx->saved_data["gw"] = c10::IValue::make_capsule(gw);
    if (bias_grad) ctx->saved_data["gb"] = gb.to(bias->scalar_type());
    if (options.weight_gradient && gw && !gw->prepared)
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
    return {gh, gw, gb, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options) {
  TESSERA_CHECK(hidden.dim() == 2 && labels.dim() == 1 && hidden.size(0) == labels.size(0), "one label for each row");
  if (!has_kernels(hidden)) return composite::linear_cross_entropy(hidden, weight, labels, options);
  const auto dense_labels = labels.contiguous();
  check_labels(dense_labels, weight.size(0));
  return LinearCrossEntropy::apply(hidden.contiguous(), weight, optional(options.bias), dense_labels, options,
                                   at::GradMode::is_enabled());
}

}  // namespace tessera::nn
