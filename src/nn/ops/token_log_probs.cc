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

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nn/kernels/row_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/head_gradient.h"
#include "nn/ops/rows.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The classes of one row after scale and softcap.
void finish_logits(float* row, const TokenScoreOptions& options, std::int64_t n) {
  if (options.scale != 1.0) kernels::scale_row(row, static_cast<float>(options.scale), n);
  if (options.softcap > 0) kernels::softcap(row, static_cast<float>(options.softcap), n);
}

/// What a gradient of finished logits is for those of the product.
void logits_gradient(const float* finished, float* g, const TokenScoreOptions& options, std::int64_t n) {
  if (options.softcap > 0) kernels::softcap_backward(finished, g, static_cast<float>(options.softcap), n);
  if (options.scale != 1.0) kernels::scale_row(g, static_cast<float>(options.scale), n);
}

/// x: the logits, p: their probabilities.
void row_statistics(const float* x, const float* p, float lse, std::int64_t label, std::int64_t n, float* out) {
  constexpr std::int64_t kLanes = 16;  // sums that do not wait for each other
  float sum[kLanes] = {}, expected[kLanes] = {}, squares[kLanes] = {};
  const std::int64_t whole = n - n % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      sum[l] += x[i + l];
      expected[l] += p[i + l] * x[i + l];
      squares[l] += p[i + l] * p[i + l];
    }
  }
  for (std::int64_t i = whole; i < n; ++i) sum[0] += x[i], expected[0] += p[i] * x[i], squares[0] += p[i] * p[i];
  double total = 0, mean_logit = 0, square = 0;
  for (std::int64_t l = 0; l < kLanes; ++l) total += sum[l], mean_logit += expected[l], square += squares[l];
  out[static_cast<int>(TokenStatistic::kEntropy)] = static_cast<float>(lse - mean_logit);
  out[static_cast<int>(TokenStatistic::kMeanLogit)] = static_cast<float>(total / static_cast<double>(n));
  out[static_cast<int>(TokenStatistic::kSumSquare)] = static_cast<float>(std::log(square));
  out[static_cast<int>(TokenStatistic::kIsTop)] = kernels::argmax(x, n) == label ? 1.0f : 0.0f;
}

struct Scored {
  const at::Tensor& logits;    // [rows, classes]; become d logp / d product when `gradient`
  const std::int64_t* labels;  // of these rows
  float* logps;
  float* statistics;  // null: not wanted
  bool gradient;
};

void score_rows(const Scored& piece, const TokenScoreOptions& options) {
  const std::int64_t n = piece.logits.size(1);
  for_rows(piece.logits.size(0), n, [&](std::int64_t first, std::int64_t last) {
    WriteRow out(piece.logits, n);
    std::vector<float> finished(n);
    for (std::int64_t r = first; r < last; ++r) {
      float* row = out.load(r * n, n);
      const auto label = piece.labels[r];
      float* const statistics = piece.statistics ? piece.statistics + r * kTokenStatistics : nullptr;
      if (label < 0) {
        piece.logps[r] = 0;
        if (statistics) std::fill_n(statistics, kTokenStatistics, 0.0f);
        std::fill_n(row, n, 0.0f);
        out.store();
        continue;
      }
      finish_logits(row, options, n);
      const float lse = kernels::log_sum_exp(row, n);
      piece.logps[r] = row[label] - lse;
      if (!statistics && !piece.gradient) continue;
      std::copy(row, row + n, finished.begin());
      kernels::scaled_softmax(row, lse, 1.0f, n);
      if (statistics) row_statistics(finished.data(), row, lse, label, n, statistics);
      if (!piece.gradient) continue;
      kernels::scale_row(row, -1.0f, n);
      row[label] += 1.0f;
      logits_gradient(finished.data(), row, options, n);
      out.store();
    }
  });
}

/// The logits become the gradient of sum over rows of g * logp.
void weigh_rows(const at::Tensor& logits, const std::int64_t* labels, const float* g,
                const TokenScoreOptions& options) {
  const std::int64_t n = logits.size(1);
  for_rows(logits.size(0), n, [&](std::int64_t first, std::int64_t last) {
    WriteRow out(logits, n);
    std::vector<float> finished(n);
    for (std::int64_t r = first; r < last; ++r) {
      float* row = out.load(r * n, n);
      if (labels[r] < 0) {
        std::fill_n(row, n, 0.0f);
      } else {
        finish_logits(row, options, n);
        std::copy(row, row + n, finished.begin());
        kernels::scaled_softmax(row, kernels::log_sum_exp(row, n), -g[r], n);
        row[labels[r]] += g[r];
        logits_gradient(finished.data(), row, options, n);
      }
      out.store();
    }
  });
}

class TokenLogProbs : public torch::autograd::Function<TokenLogProbs> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& labels, const TokenScoreOptions& options, at::Tensor statistics,
                            bool want_gradients) {
    const std::int64_t rows = hidden.size(0), step = rows_of_a_piece(hidden, weight.size(0));
    const bool weight_trains = want_gradients && weight.requires_grad();
    const bool make_gradient = want_gradients && hidden.requires_grad() && !weight_trains;
    const at::Tensor gh = make_gradient ? at::empty_like(hidden) : at::Tensor();
    const at::Tensor logps = at::empty({rows}, hidden.options().dtype(at::kFloat));
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t count = std::min(step, rows - begin);
      const auto logits = gemm(hidden.narrow(0, begin, count), weight.t());
      score_rows({logits, labels.const_data_ptr<std::int64_t>() + begin, logps.mutable_data_ptr<float>() + begin,
                  statistics.numel() > 0 ? statistics.mutable_data_ptr<float>() + begin * kTokenStatistics : nullptr,
                  make_gradient},
                 options);
      if (make_gradient) gemm_to(gh.narrow(0, begin, count), logits, weight);
    }
    ctx->saved_data["scale"] = options.scale;
    ctx->saved_data["softcap"] = options.softcap;
    if (make_gradient) ctx->saved_data["gh"] = gh;
    if (weight_trains) ctx->save_for_backward({hidden, weight, labels});
    if (options.weight_gradient && weight_trains)
      ctx->saved_data["slot"] = c10::IValue::make_capsule(options.weight_gradient);
    return logps;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor g = grads[0].to(at::kFloat).contiguous();
    const auto made = std::exchange(ctx->saved_data["gh"], c10::IValue());
    if (made.isTensor()) {
      at::Tensor gh = made.toTensor();
      gh.mul_(g.unsqueeze(1));  // in float32, whatever dtype it has
      return {gh, {}, {}, {}, {}, {}};
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
    const std::int64_t rows = hidden.size(0), step = rows_of_a_piece(hidden, weight.size(0));
    const at::Tensor gh = ctx->needs_input_grad(0) ? at::empty_like(hidden) : at::Tensor();
    HeadGradient gw(weight);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t count = std::min(step, rows - begin);
      const auto h = hidden.narrow(0, begin, count);
      const auto logits = gemm(h, weight.t());
      weigh_rows(logits, labels.const_data_ptr<std::int64_t>() + begin, g.const_data_ptr<float>() + begin, options);
      if (gh.defined()) gemm_to(gh.narrow(0, begin, count), logits, weight);
      gw.add(logits, h, begin == 0);
    }
    if (rows == 0) gw.clear(weight);
    const auto shared =
        slot.isCapsule() ? c10::static_intrusive_pointer_cast<SharedGradient>(slot.toCapsule()) : GradientSlot();
    return {gh, gw.hand_over(shared), {}, {}, {}, {}};
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

TokenScores token_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                            const TokenScoreOptions& options) {
  TESSERA_CHECK(hidden.dim() == 2 && labels.dim() == 1 && hidden.size(0) == labels.size(0), "one label for each row");
  if (!has_kernels(hidden)) {
    auto logits = at::linear(hidden, weight).to(at::kFloat) * options.scale;
    if (options.softcap > 0) logits = at::tanh(logits / options.softcap) * options.softcap;
    return token_log_probs_of(logits, labels, options.statistics);
  }
  const auto dense_labels = labels.contiguous();
  check_labels(dense_labels, weight.size(0));
  TokenScores out;
  const at::Tensor statistics = at::empty({options.statistics ? hidden.size(0) : 0, kTokenStatistics},
                                          hidden.options().dtype(at::kFloat).requires_grad(false));
  if (options.statistics) out.statistics = statistics;
  out.logps =
      TokenLogProbs::apply(hidden.contiguous(), weight, dense_labels, options, statistics, c10::GradMode::is_enabled());
  return out;
}

}  // namespace tessera::nn
