#include "nn/ops/grouped_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "nn/ops/device.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/recompute.h"
#include "tensor/device.h"
#include "tensor/rng.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kSide = 8;        // elements in 16 bytes, which GPUs read at a time
constexpr std::int64_t kAlignment = 16;  // bytes
constexpr std::size_t kMostGroups = 1023;

/// Matrices of one shape as [count, rows, columns]. Those of the experts of a unit lie equally far from each other: a
/// view then. Else a copy.
at::Tensor as_one(at::TensorList matrices) {
  const auto& first = matrices.front();
  const auto address = [](const at::Tensor& t) { return reinterpret_cast<std::intptr_t>(t.const_data_ptr()); };
  const auto count = static_cast<std::int64_t>(matrices.size());
  const auto step = count > 1 ? address(matrices[1]) - address(first) : static_cast<std::intptr_t>(first.nbytes());
  bool even = step > 0 && step % kAlignment == 0 && address(first) % kAlignment == 0;
  for (std::int64_t i = 0; i < count && even; ++i) {
    const auto& matrix = matrices[static_cast<std::size_t>(i)];
    even = matrix.is_contiguous() && address(matrix) == address(first) + i * step;
  }
  if (!even) return at::stack(matrices);
  return at::for_blob(first.mutable_data_ptr(), {count, first.size(0), first.size(1)})
      .strides(at::IntArrayRef{step / first.element_size(), first.size(1), 1})
      .options(first.options().requires_grad(false))
      .target_device(first.device())
      .make_tensor();
}

/// x_e W_e^T of each group.
at::Tensor products(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ends) {
  return at::_grouped_mm(x, weights.transpose(1, 2), ends);
}
/// g_e W_e of each group.
at::Tensor transposed_products(const at::Tensor& g, const at::Tensor& weights, const at::Tensor& ends) {
  return at::_grouped_mm(g, weights, ends);
}
/// g_e^T x_e of each group, one behind another, into gradients[first...].
void add_gradients(const at::Tensor& g, const at::Tensor& x, const at::Tensor& ends, std::size_t first,
                   variable_list& gradients) {
  const auto all = at::_grouped_mm(g.t(), x, ends).unbind(0);
  std::copy(all.begin(), all.end(), gradients.begin() + static_cast<std::ptrdiff_t>(first));
}

/// Packed weights: a capsule of a node has them for its backward.
struct PackedWeights : torch::CustomClassHolder {
  std::vector<Weight> each;
  /// [count, out, in], unpacked.
  at::Tensor as_one(const at::TensorOptions& options) const {
    const auto out_features = each.front().out_features();
    at::Tensor all;
    for (std::size_t e = 0; e < each.size(); ++e) {
      const auto values = each[e].dequantise(options.dtype().toScalarType());
      if (!all.defined())
        all = at::empty({static_cast<std::int64_t>(each.size()), out_features, values.size(1)}, options);
      all[static_cast<std::int64_t>(e)].copy_(values);
    }
    return all;
  }
};
using Packed = c10::intrusive_ptr<PackedWeights>;

/// y_e = x_e W_e^T + scaling * mask(x_e) A_e^T B_e^T as one node; without the second product where there are no
/// factors. As LoraLinear (nn/ops/lora_linear.cc), which keeps u = scaling * mask(x) A^T, too. Either `weights` or
/// `packed`.
class GroupedLinear : public torch::autograd::Function<GroupedLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights, at::TensorList a,
                            at::TensorList b, const at::Tensor& ends, const Packed& packed, double scaling,
                            const DropoutMask& mask) {
    variable_list saved(weights.begin(), weights.end());
    saved.insert(saved.end(), a.begin(), a.end());
    saved.insert(saved.end(), b.begin(), b.end());
    const auto y = products(x, packed ? packed->as_one(x.options()) : as_one(weights), ends);
    at::Tensor u;
    if (!a.empty()) {
      u = products(masked(x, mask), as_one(a), ends).mul_(scaling);
      y.add_(products(u, as_one(b), ends));
    }
    saved.push_back(ends);
    saved.push_back(u);
    const auto trains = [](at::TensorList matrices) { return !matrices.empty() && matrices.front().requires_grad(); };
    if (trains(weights) || trains(a)) keep_input(ctx, x, saved);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["weights"] = static_cast<std::int64_t>(weights.size());
    ctx->saved_data["factors"] = static_cast<std::int64_t>(a.size());
    ctx->saved_data["scaling"] = scaling;
    mask.save(ctx);
    if (packed) ctx->saved_data["packed"] = at::IValue::make_capsule(packed);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto at_weights = std::size_t{0}, at_a = at_weights + count(ctx, "weights"),
               at_b = at_a + count(ctx, "factors"), behind = at_b + count(ctx, "factors");
    const auto matrices = [&](std::size_t begin, std::size_t end) {
      return as_one(at::TensorList(saved).slice(begin, end - begin));
    };
    const auto &ends = saved[behind], &u = saved[behind + 1];
    const bool has_factors = at_a < at_b, trains_weights = at_weights < at_a && ctx->needs_input_grad(1 + at_weights),
               trains_a = has_factors && ctx->needs_input_grad(1 + at_a),
               trains_b = has_factors && ctx->needs_input_grad(1 + at_b);
    const double scaling = ctx->saved_data["scaling"].toDouble();
    const auto g = grads[0].contiguous();

    const auto mask = DropoutMask::load(ctx);
    variable_list out(1 + behind + 4);  // x, the matrices; ends, packed, scaling and mask have none
    const auto gu = has_factors ? transposed_products(g, matrices(at_b, behind), ends).mul_(scaling) : at::Tensor();
    if (ctx->needs_input_grad(0)) {
      const auto packed = ctx->saved_data.find("packed");
      out[0] = transposed_products(
          g,
          packed == ctx->saved_data.end()
              ? matrices(at_weights, at_a)
              : c10::static_intrusive_pointer_cast<PackedWeights>(packed->second.toCapsule())->as_one(g.options()),
          ends);
      const auto through_a = has_factors ? transposed_products(gu, matrices(at_a, at_b), ends) : at::Tensor();
      if (has_factors && mask.drops())
        accumulate_masked(through_a, out[0], mask);
      else if (has_factors)
        out[0].add_(through_a);
    }
    if (trains_b) add_gradients(g, u, ends, 1 + at_b, out);
    if (!trains_weights && !trains_a) return out;
    const auto x = kept_input(ctx, saved, behind + 2, out[0]);
    if (trains_a) add_gradients(gu, masked(x, mask), ends, 1 + at_a, out);
    if (trains_weights) add_gradients(g, x, ends, 1 + at_weights, out);
    return out;
  }

 private:
  static std::size_t count(AutogradContext* ctx, const char* key) {
    return static_cast<std::size_t>(ctx->saved_data[key].toInt());
  }
};

/// That of the layer's adapter: factors without memory where there is none, unset where it is no plain LoRA.
std::optional<LowRank> factors_of(const Linear& layer) {
  return layer.adapter() ? layer.adapter()->plain_low_rank(layer) : std::optional<LowRank>(LowRank{});
}

/// As layer after layer draws for its rows.
DropoutMask mask_of(double p, const at::Tensor& x, std::size_t layers, const ExpertRows& rows) {
  auto& state = tensor::random_state();
  const auto first = state.position;
  const auto draws = at::empty({static_cast<std::int64_t>(layers), 2}, at::kInt);
  auto* key = static_cast<std::uint32_t*>(draws.mutable_data_ptr());
  for (std::size_t e = 0; e < layers; ++e) {
    state.position = first + e * kDrawsOfExpert;
    const auto own = tensor::next_key();
    key[2 * e] = own.a;
    key[2 * e + 1] = own.b;
  }
  state.position = first + 1;
  const auto of_tokens = DropoutMask::keys_of(state.rows, state.rows.numel(), x);
  return {p,
          of_tokens.index_select(0, rows.tokens).bitwise_xor_(tensor::beside(draws, x).index_select(0, rows.experts))};
}

bool is_like(const LowRank& low, const LowRank& first, const at::Tensor& x) {
  if (!low.a.defined() || !first.a.defined()) return low.a.defined() == first.a.defined();
  return low.scaling == first.scaling && low.dropout == first.dropout && low.a.size(0) == first.a.size(0) &&
         low.a.size(0) % kSide == 0 && low.a.scalar_type() == x.scalar_type() && low.b.scalar_type() == x.scalar_type();
}

bool is_plain(const Linear& layer) {
  return !layer.hooked() && !layer.checkpointing() && !layer.bias.defined() &&
         layer.weight_layout() == WeightLayout::kOutIn && layer.in_features() % kSide == 0 &&
         layer.out_features() % kSide == 0;
}

bool has_values_like(const Linear& layer, const at::Tensor& x) {
  if (!layer.codec()) return layer.weight.scalar_type() == x.scalar_type();
  return layer.handle().compute_dtype(x.scalar_type()) == x.scalar_type() &&
         (layer.is_training() || !layer.codec()->rounds_inputs());
}

}  // namespace

bool can_group(const at::Tensor& x, const Linears& layers) {
  if (has_kernels(x) || x.scalar_type() != at::kBFloat16 || layers.size() > kMostGroups) return false;
  const auto& first = *layers.front();
  const auto first_factors = factors_of(first);
  // All packed weights are unpacked, those without rows, too.
  const bool packed = first.codec() != nullptr;
  if (!first_factors || (packed && x.size(0) < static_cast<std::int64_t>(layers.size()))) return false;
  const auto& keys = tensor::random_state().rows;
  if (first_factors->dropout > 0 && !(keys.defined() && keys.numel() == x.size(0))) return false;
  return std::all_of(layers.begin(), layers.end(), [&](const Linear* layer) {
    const auto low = factors_of(*layer);
    return low && is_like(*low, *first_factors, x) && is_plain(*layer) && (layer->codec() != nullptr) == packed &&
           has_values_like(*layer, x);
  });
}

at::Tensor grouped_linear(const at::Tensor& x, const Linears& layers, const ExpertRows& rows) {
  variable_list weights, a, b;
  Packed packed;
  double scaling = 1.0, dropout = 0;
  for (const auto* layer : layers) {
    if (!layer->codec()) {
      weights.push_back(layer->weight);
    } else {
      if (!packed) packed = c10::make_intrusive<PackedWeights>();
      packed->each.push_back(layer->handle());
    }
    const auto low = *factors_of(*layer);
    if (!low.a.defined()) continue;
    a.push_back(low.a);
    b.push_back(low.b);
    scaling = low.scaling;
    dropout = low.dropout;
  }
  const auto mask = dropout > 0 ? mask_of(dropout, x, layers.size(), rows) : DropoutMask();
  return GroupedLinear::apply(x, at::TensorList(weights), at::TensorList(a), at::TensorList(b), rows.ends, packed,
                              scaling, mask);
}

}  // namespace tessera::nn
