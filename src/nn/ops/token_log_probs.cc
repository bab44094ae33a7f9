#include "nn/ops/token_log_probs.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/ops/device.h"
#include "nn/ops/head_gradient.h"
#include "nn/ops/label_scores.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

LogitHead head_of(const Weight& weight, const TokenScoreOptions& options) {
  return {weight, {}, static_cast<float>(options.scale), static_cast<float>(options.softcap)};
}

class TokenLogProbs : public torch::autograd::Function<TokenLogProbs> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& tensor,
                            const at::Tensor& labels, const Weight& weight, const TokenScoreOptions& options,
                            at::Tensor statistics, bool want_gradients) {
    const bool weight_trains = want_gradients && weight.trains();
    LabelScoreOptions wanted;
    wanted.statistics = statistics.numel() > 0;
    wanted.factor = [](std::int64_t, float) { return 1.0f; };
    if (want_gradients && hidden.requires_grad() && !weight_trains) wanted.gradients.hidden = at::empty_like(hidden);
    const auto made = label_scores(hidden, head_of(weight, options), labels, wanted);
    if (wanted.statistics) statistics.copy_(made.statistics);
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["softcap"] = options.softcap;
    if (wanted.gradients.hidden.defined()) ctx->saved_data["gh"] = wanted.gradients.hidden;
    if (weight_trains) ctx->save_for_backward({hidden, tensor, labels});
    if (options.weight_gradient && weight_trains)
      ctx->saved_data["slot"] = c10::IValue::make_capsule(options.weight_gradient);
    return made.scores;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor g = grads[0].to(at::kFloat).contiguous();
    const auto made = std::exchange(ctx->saved_data["gh"], c10::IValue());
    if (made.isTensor()) {
      at::Tensor gh = made.toTensor();
      gh.mul_(g.unsqueeze(1));  // in float32, whatever dtype it has
      return {gh, {}, {}, {}, {}, {}, {}};
    }
    const auto saved = ctx->get_saved_variables();
    TESSERA_CHECK(saved.size() == 3, "token_log_probs runs backward once");
    return backward_of_both(ctx, saved, g);
  }

 private:
  static variable_list backward_of_both(AutogradContext* ctx, const variable_list& saved, const at::Tensor& g) {
    const at::Tensor &hidden = saved[0], &weight = saved[1], &labels = saved[2];
    TokenScoreOptions options;
    options.scale = ctx->saved_data["scale"].toDouble();
    options.softcap = ctx->saved_data["softcap"].toDouble();
    const auto slot = std::exchange(ctx->saved_data["slot"], c10::IValue());
    HeadGradient gw(weight);
    LabelScoreOptions wanted;
    wanted.factor = [&](std::int64_t row, float) { return g.const_data_ptr<float>()[row]; };
    wanted.gradients = {ctx->needs_input_grad(0) ? at::empty_like(hidden) : at::Tensor(), {}, &gw};
    label_scores(hidden, head_of(weight, options), labels, wanted);
    const auto shared =
        slot.isCapsule() ? c10::static_intrusive_pointer_cast<SharedGradient>(slot.toCapsule()) : GradientSlot();
    return {wanted.gradients.hidden, gw.hand_over(shared), {}, {}, {}, {}, {}};
  }
};

}  // namespace

TokenScores token_log_probs_of(const at::Tensor& logits, const at::Tensor& labels, bool statistics) {
  const auto counts = labels.ge(0);
  const auto safe = labels.clamp_min(0);
  const auto log_p = at::log_softmax(logits.to(at::kFloat), -1);
  TokenScores out;
  out.logps = log_p.gather(1, safe.unsqueeze(1)).squeeze(1) * counts;
  if (!statistics) return out;
  const c10::NoGradGuard no_grad;
  const auto p = log_p.exp();
  const auto plain = logits.detach().to(at::kFloat);
  out.statistics = at::stack({-(p * log_p).sum(-1), plain.mean(-1), at::logsumexp(log_p.detach() * 2, {-1}),
                              at::argmax(plain, -1).eq(safe).to(at::kFloat)},
                             1) *
                   counts.unsqueeze(1);
  return out;
}

TokenScores token_log_probs(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels,
                            const TokenScoreOptions& options) {
  TESSERA_CHECK(hidden.dim() == 2 && labels.dim() == 1 && hidden.size(0) == labels.size(0), "one label for each row");
  if (!has_kernels(hidden)) {
    auto logits = at::linear(hidden, weight.dequantise(hidden.scalar_type())).to(at::kFloat) * options.scale;
    if (options.softcap > 0) logits = at::tanh(logits / options.softcap) * options.softcap;
    return token_log_probs_of(logits, labels, options.statistics);
  }
  const auto dense_labels = labels.contiguous();
  TokenScores out;
  const at::Tensor statistics = at::empty({options.statistics ? hidden.size(0) : 0, kTokenStatistics},
                                          hidden.options().dtype(at::kFloat).requires_grad(false));
  if (options.statistics) out.statistics = statistics;
  out.logps = TokenLogProbs::apply(hidden.contiguous(), weight.tensor(), dense_labels, weight, options, statistics,
                                   c10::GradMode::is_enabled());
  return out;
}

}  // namespace tessera::nn
