#include "peft/methods/vblora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <limits>

#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {
namespace {

const std::string kLogits = ".vblora_logits_", kIndices = "_topk_indices", kWeights = "_topk_weights";

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
  keys.flag("save_only_topk_weights", save_only_topk_weights);
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
  if (family.model_type == "t5") return {"q", "k", "v", "o", "wi", "wo"};
  if (family.model_type == "mt5") return {"q", "k", "v", "o", "wi_0", "wi_1", "wo"};
  if (family.model_type == "opt") return {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"};
  if (family.model_type == "deberta-v2") return {"query_proj", "key_proj", "value_proj", "dense"};
  return FactorMethod::default_targets(family);
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

at::Tensor VbLora::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                          const Tensors& t) const {
  if (layer.is_training() && t[0].select(0, 0).select(0, 0).detach().isinf().any().item<bool>()) {
    throw ConfigError(
        "this VB-LoRA adapter was saved with save_only_topk_weights, so most of its logits are gone: it can be used "
        "and merged, not trained",
        "save_only_topk_weights");
  }
  return FactorMethod::output(layer, sizes, x, t);
}

std::vector<std::string> VbLora::file_names(const std::string& parameter) const {
  if (save_only_topk_weights && parameter.find(kLogits) != std::string::npos) return {};
  return FactorMethod::file_names(parameter);
}

Values VbLora::in_file(const Values& adapters) const {
  Values out;
  if (!save_only_topk_weights) return out;
  const auto dtype = num_vectors < 256 ? at::kByte : num_vectors < 32768 ? at::kShort : at::kInt;
  for (const auto& [name, logits] : adapters) {
    if (name.find(kLogits) == std::string::npos) continue;
    const auto [values, indices] = at::topk(logits.to(at::kFloat), topk, -1);
    out[file_name(name) + kIndices] = indices.to(dtype);
    out[file_name(name) + kWeights] = at::softmax(values, -1).narrow(-1, 0, topk - 1).contiguous();
  }
  return out;
}

std::shared_ptr<const io::TensorSource> VbLora::readable(std::shared_ptr<const io::TensorSource> file) const {
  if (!save_only_topk_weights) return file;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& info : file->tensors()) {
    if (!info.name.ends_with(kIndices)) {
      if (!info.name.ends_with(kWeights)) tensors.emplace_back(info.name, io::read_tensor(*file, info.name));
      continue;
    }
    const auto name = info.name.substr(0, info.name.size() - kIndices.size());
    if (!file->find(name + kWeights))
      throw DataError(info.file + " lacks the tensor '" + name + kWeights + "'", info.file);
    const auto indices = io::read_tensor(*file, info.name).to(at::kLong);
    auto weights = io::read_tensor(*file, name + kWeights).to(at::kFloat);
    auto sizes = indices.sizes().vec();
    const bool fits = indices.dim() == 3 && weights.dim() == 3 && weights.size(-1) + 1 == indices.size(-1) &&
                      weights.sizes().slice(0, 2) == indices.sizes().slice(0, 2) && indices.numel() > 0 &&
                      indices.min().item<std::int64_t>() >= 0 && indices.max().item<std::int64_t>() < num_vectors;
    if (!fits) {
      throw DataError("'" + info.name + "' in " + info.file + " does not go with '" + name + kWeights +
                          "' and num_vectors " + std::to_string(num_vectors),
                      info.file);
    }
    weights = at::cat({weights, (1 - weights.sum(-1, /*keepdim=*/true)).clamp_min(0)}, -1);
    sizes.back() = num_vectors;
    tensors.emplace_back(name, at::full(sizes, -std::numeric_limits<float>::infinity(), weights.options())
                                   .scatter(-1, indices, weights.log()));
  }
  return io::memory_source(std::move(tensors));
}

DeltaFactors VbLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto a = mixed(t[0], t[2], topk).reshape({r, sizes.in});
  const auto b = mixed(t[1], t[2], topk).transpose(1, 2).reshape({sizes.out, r});
  return {a, b, 1.0, vblora_dropout};
}

}  // namespace tessera::peft
