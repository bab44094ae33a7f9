#include "peft/methods/vblora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "peft/methods/wide_targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// logits [.., n], bank [n, length]: [.., length].
at::Tensor mixed(const at::Tensor& logits, const at::Tensor& bank, std::int64_t topk) {
  const auto [values, indices] = at::topk(logits, topk, -1);
  auto sizes = indices.sizes().vec();
  sizes.push_back(bank.size(1));
  const auto vectors = bank.index_select(0, indices.flatten()).view(sizes);
  return (at::softmax(values, -1).unsqueeze(-1) * vectors).sum(-2);
}

}  // namespace

void VbLora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.integer("num_vectors", num_vectors);
  keys.integer("vector_length", vector_length);
  keys.integer("topk", topk);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.unsupported("save_only_topk_weights", false);
  keys.number("vblora_dropout", vblora_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.number("init_vector_bank_bound", init_vector_bank_bound);
  keys.number("init_logits_std", init_logits_std);
}

void VbLora::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_positive("num_vectors", num_vectors);
  require_positive("vector_length", vector_length);
  require_positive("topk", topk);
  require_probability("vblora_dropout", vblora_dropout);
  if (topk > num_vectors) {
    throw ConfigError(
        "topk is " + std::to_string(topk) + ", more than num_vectors (" + std::to_string(num_vectors) + ")", "topk");
  }
}

std::vector<std::string> VbLora::default_targets(const models::ModelConfig& family) const {
  return wide_targets(family);
}

std::vector<AddedTensor> VbLora::added(const LayerSizes& layer) const {
  if (layer.in % vector_length != 0 || layer.out % vector_length != 0) {
    throw ConfigError("vector_length " + std::to_string(vector_length) + " does not divide the sides of '" +
                          layer.name + "' (" + std::to_string(layer.out) + " x " + std::to_string(layer.in) +
                          "); choose a common divisor of all targets' sides",
                      "vector_length");
  }
  return {{"vblora_logits_A.default", {r, layer.in / vector_length, num_vectors}, normal(init_logits_std)},
          {"vblora_logits_B.default", {layer.out / vector_length, r, num_vectors}, normal(init_logits_std)}};
}

std::vector<AddedTensor> VbLora::shared(const std::vector<LayerSizes>&) const {
  return {{"vblora_vector_bank.default", {num_vectors, vector_length}, uniform(init_vector_bank_bound)}};
}

nn::LowRank VbLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto a = mixed(t[0], t[2], topk).reshape({r, sizes.in});
  const auto b = mixed(t[1], t[2], topk).transpose(1, 2).reshape({sizes.out, r});
  return {a, b, 1.0, vblora_dropout};
}

}  // namespace tessera::peft
