#include "peft/methods/delora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "peft/slots.h"
#include "peft/targets.h"

namespace tessera::peft {
namespace {

constexpr auto kNorms = "delora_w_norm.default";

at::Tensor norms(const at::Tensor& t, std::int64_t dim) {
  return at::linalg_vector_norm(t, 2, at::IntArrayRef{dim});
}

/// Not below what PEFT divides by.
at::Tensor divisors(const at::Tensor& t, std::int64_t dim) {
  return norms(t, dim).clamp_min(1e-4);
}

}  // namespace

void DeLora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.whole_number("delora_lambda", delora_lambda);
  keys.number("module_dropout", module_dropout);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
  keys.pattern("rank_pattern", rank_pattern);
  keys.pattern("lambda_pattern", lambda_pattern);
}

void DeLora::check() const {
  FactorMethod::check();
  require_positive("r", r);
  for (const auto& [pattern, rank] : rank_pattern) require_positive("rank_pattern", rank);
  require_probability("module_dropout", module_dropout);
}

std::int64_t DeLora::rank_of(const std::string& layer) const {
  return by_pattern(layer, rank_pattern, r, "rank_pattern");
}

std::vector<AddedTensor> DeLora::added(const LayerSizes& layer) const {
  const auto rank = rank_of(layer.name);
  const auto lambda = by_pattern(layer.name, lambda_pattern, delora_lambda, "lambda_pattern");
  return {{"delora_A.default", {rank, layer.in}, kaiming_uniform()},
          {"delora_B.default", {layer.out, rank}, init_weights ? zeros() : kaiming_uniform()},
          {"delora_lambda.default", {1}, constant(lambda)},
          {kNorms, {layer.in}, constant(1), /*trains=*/false}};
}

std::vector<FromWeight> DeLora::from_weights(const nn::HookedModule& model, std::uint64_t) const {
  std::vector<FromWeight> out;
  for (const auto& slot : adapted_places(model))
    out.push_back({slot.weight_name(), [slot](const at::Tensor& weight, const Values&) -> Values {
                     return {{slot.full_name(kNorms), norms(weight.to(at::kFloat), 0)}};
                   }});
  return out;
}

DeltaFactors DeLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto &a = t[0], &b = t[1], &lambda = t[2], &w = t[3];
  const auto share = lambda / static_cast<double>(rank_of(sizes.name));
  return {a * w, b, 1.0, module_dropout, share / (divisors(a, 1) * divisors(b, 0))};
}

}  // namespace tessera::peft
