#include "peft/methods/randlora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "nn/ops/device.h"
#include "nn/ops/matmul.h"
#include "peft/methods/torch_draws.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Bases {
  at::Tensor a, b;
};

/// The sides of the largest layer.
struct BaseSizes {
  std::int64_t r, smaller, larger, count;
};

// PEFT draws in bfloat16 where the processor can.
Bases dense_bases(const BaseSizes& s, std::int64_t seed) {
  TorchDraws draws(seed);
  const auto draw = [&](at::IntArrayRef sizes) {  // kaiming_uniform_(a=sqrt(5))
    const auto fan = static_cast<double>(sizes[1] * sizes[2]);
    const double bound = std::sqrt(3.0) * (std::sqrt(2.0 / (1 + 5.0)) / std::sqrt(fan));
    return draws.uniform(sizes, -bound, bound, at::kBFloat16);
  };
  const auto a = draw({s.r, 1, s.smaller});
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < s.count; ++i) parts.push_back(draw({s.larger, 1, s.r}));
  const auto b = at::cat(parts, 1);
  return {(a / a.std()).to(at::kFloat), (b / b.std()).to(at::kFloat)};
}

// Achlioptas' projections (PEFT: https://cs-people.bu.edu/evimaria/cs565/kdd-rp.pdf).
Bases sparse_bases(const BaseSizes& s, std::int64_t seed, double sparsity) {
  TorchDraws draws(seed);
  const auto draw = [&](at::IntArrayRef sizes) {
    const auto u = draws.uniform(sizes, 0, 1);
    const auto signs = u.gt(1 - 1 / (2 * sparsity)).to(at::kFloat) - u.lt(1 / (2 * sparsity)).to(at::kFloat);
    return signs / signs.std();
  };
  const auto a = draw({s.r, 1, s.smaller});
  return {a, draw({s.larger, s.count, s.r})};
}

/// lambda[i, j] A[i] gamma[j] for all pairs, [r n, side]; lambda: [r, n], A: [r, 1, side] without gradient, gamma: [n,
/// side].
class Weighed : public torch::autograd::Function<Weighed> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& lambda, const at::Tensor& a,
                            const at::Tensor& gamma) {
    ctx->save_for_backward({lambda, a, gamma});
    return (lambda.unsqueeze(2) * gamma.unsqueeze(0)).mul_(a).flatten(0, 1);
  }

  /// Both in one pass over the large gradient.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat).contiguous(); };
    const auto g = wide(grads[0]), lambda = wide(saved[0]), a = wide(saved[1]), gamma = wide(saved[2]);
    const auto r = lambda.size(0), n = lambda.size(1), side = gamma.size(1);
    const auto of_lambda = at::empty_like(lambda), of_gamma = at::zeros_like(gamma);
    for (std::int64_t i = 0; i < r; ++i) {
      const auto* base = a.const_data_ptr<float>() + i * side;
      for (std::int64_t j = 0; j < n; ++j) {
        const auto* row = g.const_data_ptr<float>() + (i * n + j) * side;
        const auto* weight = gamma.const_data_ptr<float>() + j * side;
        auto* to = of_gamma.mutable_data_ptr<float>() + j * side;
        const float factor = lambda.const_data_ptr<float>()[i * n + j];
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t k = 0; k < side; ++k) {
          const float product = row[k] * base[k];
          sum += product * weight[k];
          to[k] += product * factor;
        }
        of_lambda.mutable_data_ptr<float>()[i * n + j] = sum;
      }
    }
    return {of_lambda.to(saved[0].scalar_type()), at::Tensor(), of_gamma.to(saved[2].scalar_type())};
  }
};

at::Tensor weighed(const at::Tensor& lambda, const at::Tensor& a, const at::Tensor& gamma) {
  if (nn::has_kernels(lambda)) return Weighed::apply(lambda, a, gamma);
  return (lambda.unsqueeze(2) * a * gamma.unsqueeze(0)).flatten(0, 1);
}

}  // namespace

void RandLora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.integer("projection_prng_key", projection_prng_key);
  keys.flag("save_projection", save_projection);
  keys.flag("sparse", sparse);
  keys.flag("very_sparse", very_sparse);
  keys.number("randlora_dropout", randlora_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.whole_number("randlora_alpha", randlora_alpha);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void RandLora::check() const {
  DeltaMethod::check();
  require_positive("r", r);
  require_probability("randlora_dropout", randlora_dropout);
}

std::vector<std::string> RandLora::attach(models::Model& model, const models::ModelConfig& family) {
  return layers_ = DeltaMethod::attach(model, family);
}

std::vector<AddedTensor> RandLora::added(const LayerSizes& layer) const {
  const auto count = bases(layer.smaller());
  const double gamma = init_weights ? 1.0 / static_cast<double>(std::max(count, layer.smaller()))
                                    : 1.0 / static_cast<double>(layer.larger());
  return {{"randlora_lambda.default", {r, count}, init_weights ? zeros() : normal(1)},
          {"randlora_gamma.default", {count, layer.smaller()}, constant(gamma)}};
}

std::vector<AddedTensor> RandLora::shared(const std::vector<LayerSizes>& layers) const {
  std::int64_t in = 0, out = 0;
  for (const auto& layer : layers) {
    in = std::max(in, layer.in);
    out = std::max(out, layer.out);
  }
  const BaseSizes s{r, std::min(in, out), std::max(in, out), bases(std::min(in, out))};
  const auto draw = [=, this](bool wants_b) {
    return [=, this](const at::Tensor& t, tensor::RandomKey) {
      const double sparsity = very_sparse ? std::sqrt(static_cast<double>(s.smaller)) : 3;
      const auto made =
          sparse || very_sparse ? sparse_bases(s, projection_prng_key, sparsity) : dense_bases(s, projection_prng_key);
      t.copy_(wants_b ? made.b : made.a);
    };
  };
  return {{"randlora_A.default", {s.r, 1, s.smaller}, draw(false), false},
          {"randlora_B.default", {s.larger, s.count, s.r}, draw(true), false}};
}

std::vector<std::string> RandLora::file_names(const std::string& parameter) const {
  auto names = DeltaMethod::file_names(parameter);
  if (parameter != "randlora_A.default" && parameter != "randlora_B.default") return names;
  if (!save_projection) return {};
  for (const auto& layer : layers_) names.push_back(prefix() + layer + "." + parameter.substr(0, parameter.find('.')));
  return names;
}

// B's flat index pairs (base, rank), A's (rank, base), as upstream contracts them.
DeltaFactors RandLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto &lambda = t[0], &gamma = t[1];
  const auto a = t[2].narrow(2, 0, sizes.smaller());
  const auto b = t[3].narrow(0, 0, sizes.larger()).narrow(1, 0, bases(sizes.smaller()));
  const auto wide = b.flatten(1), narrow = weighed(lambda, a, gamma);
  const double scaling = randlora_alpha / static_cast<double>(r);
  if (sizes.smaller() == sizes.in) return {narrow, wide, scaling};
  return {wide.t(), narrow.t(), scaling};
}

at::Tensor RandLora::delta(const LayerSizes& sizes, const Tensors& t) const {
  const auto f = factors(sizes, t);
  return nn::matmul(f.b, f.a) * f.scaling;
}

}  // namespace tessera::peft
