#include "train/lora_fa_projections.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/matmul.h>

#include <map>

#include "optim/lora_fa.h"
#include "peft/methods/lora_layers.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

/// "...q_proj.lora_B.default.weight" -> "...q_proj.lora_A.default.weight"; "" for what is no lora_B.
std::string partner_of(const std::string& b) {
  for (const std::string part : {".lora_B.", ".lora_embedding_B."})
    if (const auto at = b.find(part); at != std::string::npos)
      return std::string(b).replace(at + part.size() - 2, 1, "A");
  return "";
}

/// Of the layer's adapter; 0: it has none of LoRA's.
double scaling_of(const torch::nn::Module& layer) {
  if (const auto* linear = dynamic_cast<const nn::Linear*>(&layer))
    if (const auto* lora = dynamic_cast<const peft::LoraLinear*>(linear->adapter())) return lora->scaling();
  if (const auto* embedding = dynamic_cast<const nn::Embedding*>(&layer))
    if (const auto* lora = dynamic_cast<const peft::LoraEmbedding*>(embedding->adapter())) return lora->scaling();
  return 0;
}

optim::RowProjection projection(const at::Tensor& a, double scaling) {
  const auto values = a.detach().cpu().to(at::kFloat);
  const auto product = at::matmul(values, values.t());
  const auto inverse = at::linalg_pinv(product + 1e-8 * at::eye(values.size(0))).contiguous();
  optim::RowProjection p;
  p.rank = values.size(0);
  p.scale = static_cast<float>(1 / (scaling * scaling));
  p.inverse.assign(inverse.const_data_ptr<float>(), inverse.const_data_ptr<float>() + inverse.numel());
  return p;
}

}  // namespace

void freeze_lora_a(nn::HookedModule& modules) {
  bool any = false;
  for (auto& item : modules.named_parameters()) {
    const auto& name = item.key();
    if (name.find(".lora_magnitude_vector") != std::string::npos)
      throw ConfigError("--optim lorafa trains LoRA alone: DoRA's magnitudes depend on lora_A; leave out --use_dora",
                        "optim");
    if (name.find(".lora_A.") == std::string::npos && name.find(".lora_embedding_A.") == std::string::npos) continue;
    item.value().set_requires_grad(false);
    any = true;
  }
  if (!any) throw ConfigError("--optim lorafa: the model has no lora_A; it is for LoRA adapters", "optim");
}

void set_projections(optim::Optimizer& optimizer, nn::HookedModule& modules, fsdp::FullyShardedDataParallel& model) {
  auto* lora_fa = dynamic_cast<optim::LoraFa*>(&optimizer.computing());
  if (!lora_fa) return;
  std::map<std::string, std::pair<std::string, double>> wanted;  // by A: its B, and their scaling
  const auto layers = modules.named_modules("", /*include_self=*/false);
  for (const auto& slice : fsdp::parameter_slices(model)) {
    const auto a = partner_of(slice.name);
    if (a.empty()) continue;
    const auto* layer = layers.find(slice.name.substr(0, slice.name.rfind(".lora_")));
    const double scaling = layer ? scaling_of(**layer) : 0;
    if (scaling != 0) wanted[a] = {slice.name, scaling};
  }
  const at::NoGradGuard no_grad;
  std::map<std::string, optim::RowProjection> projections;
  model.visit_full(
      [&](const std::string& name, const at::Tensor& t) {
        const auto it = wanted.find(name);
        if (it != wanted.end()) projections[it->second.first] = projection(t, it->second.second);
      },
      [&](const std::string& name) { return wanted.contains(name); });
  lora_fa->set_projections(std::move(projections));
}

}  // namespace tessera::train
