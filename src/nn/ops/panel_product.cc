#include "nn/ops/panel_product.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "nn/kernels/token_panels.h"
#include "nn/layers/saved_weight.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/over_rows.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

using kernels::kPanelTokens;
using kernels::TokenRows;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// At most so many threads work on panels, each on its own: memory does not grow with the processor's cores.
constexpr std::int64_t kMostThreads = 8;

std::int64_t panels_of(std::int64_t tokens) {
  return (tokens + kPanelTokens - 1) / kPanelTokens;
}

/// The threads that work on panels.
class Threads {
 public:
  Threads() : pools_(static_cast<std::size_t>(std::clamp<std::int64_t>(at::get_num_threads(), 1, kMostThreads))) {}

  /// f(panel, pool) for as many panels at a time as there are threads; then(first, past the last).
  template <class F, class Then>
  void for_panels(std::int64_t panels, const F& f, const Then& then) {
    const auto at_once = static_cast<std::int64_t>(pools_.size());
    for (std::int64_t begin = 0; begin < panels; begin += at_once) {
      const auto end = std::min(begin + at_once, panels);
      at::parallel_for(begin, end, 1, [&](std::int64_t first, std::int64_t last) {
        for (auto i = first; i < last; ++i) f(i, pools_[static_cast<std::size_t>(i - begin)]);
      });
      then(begin, end);
    }
  }

 private:
  std::vector<PanelPool> pools_;
};

/// The rows of a panel, of a contiguous tensor [N, n].
template <class T, class Bits>
TokenRows<Bits> token_rows(const at::Tensor& rows, std::int64_t panel) {
  const auto begin = panel * kPanelTokens, width = rows.size(1);
  auto* at = const_cast<T*>(rows.const_data_ptr<T>()) + begin * width;
  return {reinterpret_cast<Bits*>(at), std::min(kPanelTokens, rows.size(0) - begin), width, width};
}

at::Tensor rows_of_panel(const at::Tensor& rows, std::int64_t panel) {
  const auto begin = panel * kPanelTokens;
  return rows.narrow(0, begin, std::min(kPanelTokens, rows.size(0) - begin));
}

at::Tensor panel_of(const at::Tensor& rows, std::int64_t panel, PanelPool& pool) {
  if (!is_float_or_bfloat16(rows.scalar_type())) return panel_of(rows_of_panel(rows, panel).to(at::kFloat), 0, pool);
  auto out = pool.panel(rows.size(1));
  auto* to = out.mutable_data_ptr<float>();
  if (rows.scalar_type() == at::kFloat) {
    kernels::turn_to_panel(token_rows<float, const float>(rows, panel), to);
  } else {
    kernels::turn_to_panel(token_rows<at::BFloat16, const std::uint16_t>(rows, panel), to);
  }
  return out;
}

void add_to_rows(const at::Tensor& numbers, const at::Tensor& rows, std::int64_t panel) {
  const auto* from = numbers.const_data_ptr<float>();
  if (rows.scalar_type() == at::kFloat) {
    kernels::add_panel(from, token_rows<float, float>(rows, panel));
  } else if (rows.scalar_type() == at::kBFloat16) {
    kernels::add_panel(from, token_rows<at::BFloat16, std::uint16_t>(rows, panel));
  } else {
    const auto some = rows_of_panel(rows, panel);
    some.add_(numbers.narrow(1, 0, some.size(0)).t());
  }
}

class PanelProduct : public torch::autograd::Function<PanelProduct> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& numbers,
                            const std::optional<at::Tensor>& bias, const Weight& weight, const PanelDeltaPtr& delta) {
    auto y = weight.product(x).contiguous();
    const auto prepared = delta->prepared(numbers.detach());
    Threads().for_panels(
        panels_of(x.size(0)),
        [&](std::int64_t panel, PanelPool& pool) {
          add_to_rows(delta->output(prepared, delta->from_input(panel_of(x, panel, pool), pool), pool), y, panel);
        },
        [](std::int64_t, std::int64_t) {});
    variable_list saved{weight.tensor(), numbers};
    keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    save_weight(ctx, weight);
    ctx->saved_data["delta"] = at::IValue::make_capsule(delta);
    ctx->saved_data["bias"] = bias.has_value();
    return bias ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto g = grads[0].contiguous(), numbers = saved[1].detach();
    const auto delta = c10::static_intrusive_pointer_cast<PanelDelta>(ctx->saved_data.at("delta").toCapsule());
    at::Tensor gx, gn, gb;
    if (ctx->needs_input_grad(0)) gx = saved_weight(ctx, saved[0]).transposed_product(g).contiguous();
    const auto x = kept_input(ctx, saved, 2);
    const bool trains = ctx->needs_input_grad(1);
    const auto prepared = gx.defined() ? delta->prepared(numbers) : at::Tensor();
    const auto sums = trains ? delta->no_gradient(numbers) : at::Tensor();
    const auto panels = panels_of(g.size(0));
    std::vector<at::Tensor> inputs(static_cast<std::size_t>(panels)), gradients(inputs.size());
    Threads().for_panels(
        panels,
        [&](std::int64_t panel, PanelPool& pool) {
          auto& of_y = gradients[static_cast<std::size_t>(panel)];
          of_y = delta->from_gradient(panel_of(g, panel, pool), pool);
          if (gx.defined()) add_to_rows(delta->input_gradient(prepared, of_y, pool), gx, panel);
          if (trains) inputs[static_cast<std::size_t>(panel)] = delta->from_input(panel_of(x, panel, pool), pool);
        },
        [&](std::int64_t begin, std::int64_t end) {
          for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            if (trains) delta->add_gradient(inputs[i], gradients[i], sums);
            inputs[i] = gradients[i] = at::Tensor();
          }
        });
    if (trains) gn = delta->gradient(sums).to(numbers.scalar_type());
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) gb = column_sums(g);
    return {gx, gn, gb, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor PanelPool::panel(std::int64_t rows) {
  for (const auto& known : panels_)
    if (known.size(0) == rows && known.use_count() == 1) return known;
  panels_.push_back(at::empty({rows, kPanelTokens}, at::kFloat));
  return panels_.back();
}

at::Tensor panel_product(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, const at::Tensor& numbers,
                         const PanelDeltaPtr& delta) {
  return over_rows(
      x, [&](const at::Tensor& rows) { return PanelProduct::apply(rows, numbers, optional(bias), weight, delta); });
}

}  // namespace tessera::nn
