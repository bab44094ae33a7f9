#include "peft/methods/psoft.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/sqrt.h>

#include "base/json_text.h"
#include "nn/ops/matmul.h"
#include "peft/methods/cayley.h"
#include "peft/methods/lora_starts.h"
#include "peft/methods/torch_draws.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

constexpr auto kA = "psoft_A.default", kB = "psoft_B.default";

}  // namespace

void Psoft::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.whole_number("psoft_alpha", psoft_alpha);
  keys.number("psoft_dropout", psoft_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("ab_svd_init", ab_svd_init);
  keys.text("psoft_svd", psoft_svd);
  keys.integer("psoft_svd_lowrank_niter", psoft_svd_lowrank_niter);
  keys.integer("random_seed", random_seed);
  keys.flag("psoft_orth", psoft_orth);
  keys.flag("psoft_mag_b", psoft_mag_b);
  keys.flag("psoft_mag_a", psoft_mag_a);
  keys.flag("use_cayley_neumann", use_cayley_neumann);
  keys.integer("num_cayley_neumann_terms", num_cayley_neumann_terms);
  keys.any("cayley_neumann_eps", cayley_neumann_eps);
  keys.flag("init_weights", init_weights);
}

void Psoft::check() const {
  FactorMethod::check();
  const auto one_of = [](const char* key, const std::string& value, const std::string& first,
                         const std::string& second) {
    if (value != first && value != second)
      throw ConfigError(std::string(key) + " is one of " + first + ", " + second + "; found '" + value + "'", key);
  };
  require_positive("r", r);
  require_probability("psoft_dropout", psoft_dropout);
  one_of("ab_svd_init", ab_svd_init, "psoft_init", "pissa_init");
  one_of("psoft_svd", psoft_svd, "full", "lowrank");
  if (psoft_svd_lowrank_niter < 0)
    throw ConfigError("psoft_svd_lowrank_niter must not be negative, found " + std::to_string(psoft_svd_lowrank_niter),
                      "psoft_svd_lowrank_niter");
  if (psoft_alpha == 0) throw ConfigError("psoft_alpha must not be 0", "psoft_alpha");
  require_positive("num_cayley_neumann_terms", num_cayley_neumann_terms);
  const auto& eps = cayley_neumann_eps;
  if (!eps.is_null() && !(eps.is_number() && eps.get<double>() > 0 && eps.get<double>() < 1))
    throw ConfigError("cayley_neumann_eps is null or a number between 0 and 1, found " + json_text(eps),
                      "cayley_neumann_eps");
}

std::vector<AddedTensor> Psoft::added(const LayerSizes& layer) const {
  if (r > layer.smaller())
    throw ConfigError("r is " + std::to_string(r) + ", more than the smaller side of '" + layer.name + "' (" +
                          std::to_string(layer.out) + " by " + std::to_string(layer.in) + ")",
                      "r");
  const auto near_one = [noise = init_weights ? 0.0 : 0.1](const at::Tensor& t, tensor::RandomKey key) {
    tensor::fill_normal(t, key, 0, noise);
    t.diagonal().add_(1);
  };
  std::vector<AddedTensor> tensors = {
      psoft_orth ? AddedTensor{"psoft_R.default.weight", {r * (r - 1) / 2}, init_weights ? zeros() : normal(0.1)}
                 : AddedTensor{"psoft_R.default.weight", {r, r}, near_one}};
  if (psoft_mag_b) tensors.push_back({"psoft_R.default.vector_b", {r}, constant(1)});
  if (psoft_mag_a) tensors.push_back({"psoft_R.default.vector_a", {r}, constant(1)});
  tensors.push_back({kA, {r, layer.in}, zeros(), /*trains=*/false});
  tensors.push_back({kB, {layer.out, r}, zeros(), /*trains=*/false});
  return tensors;
}

std::vector<FromWeight> Psoft::from_weights_of_saved(const nn::HookedModule& model) const {
  std::vector<FromWeight> out;
  for (const auto& slot : adapted_places(model))
    out.push_back(
        {slot.weight_name(), [this, slot](const at::Tensor& weight, const Values&) -> Values {
           const auto w = weight.detach().to(at::kFloat);
           const auto side = std::min(w.size(0), w.size(1));
           auto [u, s, vh] = psoft_svd == "full" ? largest_parts(w, r)
                                                 : nearly_largest_parts(w, TorchDraws(random_seed).normal({side, r}),
                                                                        psoft_svd_lowrank_niter);
           s = s / scaling();
           const bool roots = ab_svd_init == "pissa_init";
           if (roots) s = at::sqrt(s);
           return {{slot.full_name(kA), roots ? s.unsqueeze(1) * vh : vh.contiguous()}, {slot.full_name(kB), u * s}};
         }});
  return out;
}

std::vector<FromWeight> Psoft::from_weights(const nn::HookedModule& model, std::uint64_t) const {
  return from_weights_of_saved(model);
}

std::vector<std::string> Psoft::file_names(const std::string& parameter) const {
  if (parameter.ends_with(kA) || parameter.ends_with(kB)) return {};
  return FactorMethod::file_names(parameter);
}

at::Tensor Psoft::turn(const Tensors& t) const {
  auto turned = t[0];
  if (psoft_orth) {
    auto q = skew_symmetric(t[0].unsqueeze(0), r);
    if (use_cayley_neumann && !cayley_neumann_eps.is_null()) {
      const auto bound = cayley_neumann_eps.get<double>();
      const auto norm = at::linalg_vector_norm(q.to(at::kFloat));
      q = q * (bound / (norm + 1e-12)).clamp_max(1).to(q.scalar_type());
    }
    turned = (use_cayley_neumann ? cayley_neumann(q, num_cayley_neumann_terms) : cayley(-q))[0];
  }
  std::size_t next = 1;
  if (psoft_mag_b) turned = t[next++].unsqueeze(1) * turned;
  if (psoft_mag_a) turned = turned * t[next];
  return turned;
}

DeltaFactors Psoft::factors(const LayerSizes&, const Tensors& t) const {
  const auto &a = t[t.size() - 2], &b = t[t.size() - 1];
  const auto turned = turn(t);
  return {a, nn::matmul(b, turned - at::eye(r, turned.options())), scaling(), psoft_dropout};
}

}  // namespace tessera::peft
