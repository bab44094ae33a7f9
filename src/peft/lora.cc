#include "peft/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>

#include "peft/dora_layers.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

const std::string kMagnitude = "lora_magnitude_vector.default.weight";

/// Names of the factors below a slot.
std::string name_of_a(const Slot& slot) {
  return slot.linear ? "lora_A.default.weight" : "lora_embedding_A.default";
}
std::string name_of_b(const Slot& slot) {
  return slot.linear ? "lora_B.default.weight" : "lora_embedding_B.default";
}

// Uniform with the bound of torch.nn.Linear: Kaiming's with a = sqrt(5).
void fill_like_linear(const at::Tensor& w, tensor::RandomKey key) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(w.size(1)));
  tensor::fill_uniform(w, key, -bound, bound);
}

using Draw = std::function<void(const at::Tensor&, tensor::RandomKey)>;

Draw draw_a(const Slot& slot, const std::string& how) {
  if (how == "gaussian" && slot.linear) {
    return [](const at::Tensor& a, tensor::RandomKey key) {
      tensor::fill_normal(a, key, 0.0, 1.0 / static_cast<double>(a.size(0)));
    };
  }
  if (slot.linear) return fill_like_linear;
  if (how == "false") return [](const at::Tensor& a, tensor::RandomKey key) { tensor::fill_normal(a, key, 0.0, 1.0); };
  return [](const at::Tensor& a, tensor::RandomKey) { a.zero_(); };
}

Draw draw_b(const Slot& slot, const std::string& how) {
  if (slot.embedding) return [](const at::Tensor& b, tensor::RandomKey key) { tensor::fill_normal(b, key, 0.0, 1.0); };
  if (how == "false") return fill_like_linear;
  return [](const at::Tensor& b, tensor::RandomKey) { b.zero_(); };
}

at::Tensor row_norms(const at::Tensor& sum) {
  return at::linalg_vector_norm(sum, 2, at::IntArrayRef{1});
}

[[noreturn]] void refuse(const std::string& key, const std::string& why) {
  throw ConfigError("LoRA option '" + key + "' " + why, key);
}

}  // namespace

void Lora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.whole_number("lora_alpha", lora_alpha);
  keys.number("lora_dropout", lora_dropout);
  keys.flag("use_rslora", use_rslora);
  keys.flag("use_dora", use_dora);
  keys.text("bias", bias);
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.integers("layers_to_transform", layers_to_transform);
  keys.names("layers_pattern", layers_pattern);
  keys.pattern("rank_pattern", rank_pattern);
  keys.pattern("alpha_pattern", alpha_pattern);
  keys.flag_or_word("init_lora_weights", init_lora_weights);
  keys.unsupported("lora_bias", false);
  keys.unsupported("use_qalora", false);
  for (const char* key :
       {"layer_replication", "target_parameters", "alora_invocation_tokens", "trainable_token_indices", "use_bdlora"})
    keys.unsupported(key, nullptr);
  for (const char* key : {"arrow_config", "corda_config", "eva_config", "kasa_config", "lora_ga_config",
                          "megatron_config", "monteclora_config", "velora_config"})
    keys.ignored(key, nullptr);
  keys.ignored("ensure_weight_tying", false);
  keys.ignored("loftq_config", nlohmann::json::object());
  keys.ignored("megatron_core", "megatron.core");
  keys.ignored("qalora_group_size", 16);
}

void Lora::check() const {
  LayerMethod::check();
  if (r <= 0) refuse("r", "must be positive, found " + std::to_string(r));
  if (lora_dropout < 0 || lora_dropout > 1) refuse("lora_dropout", "must be in [0, 1]");
  if (bias != "none" && bias != "all" && bias != "lora_only") refuse("bias", "is one of none, all, lora_only");
  if (init_lora_weights != "true" && init_lora_weights != "false" && init_lora_weights != "gaussian") {
    refuse("init_lora_weights", "is one of true, false, gaussian; found '" + init_lora_weights +
                                    "' (initialisations that change the base weights are not supported)");
  }
}

std::vector<std::string> Lora::default_targets(const models::ModelConfig& family) const {
  return family.default_lora_targets;
}

std::int64_t Lora::rank_of(const std::string& module) const {
  return by_pattern(module, rank_pattern, r, "rank_pattern");
}

double Lora::scaling_of(const std::string& module) const {
  const auto rank = static_cast<double>(rank_of(module));
  const double alpha = by_pattern(module, alpha_pattern, lora_alpha, "alpha_pattern");
  return use_rslora ? alpha / std::sqrt(rank) : alpha / rank;
}

void Lora::attach_to(const Slot& slot) const {
  const auto rank = rank_of(slot.name);
  if (rank <= 0) {
    throw ConfigError("rank_pattern: the rank of '" + slot.name + "' must be positive, found " + std::to_string(rank),
                      "rank_pattern");
  }
  const LoraShape shape{.rank = rank, .scaling = scaling_of(slot.name), .dropout = lora_dropout};
  if (slot.linear) {
    slot.linear->attach(use_dora ? std::make_shared<DoraLinear>(*slot.linear, shape)
                                 : std::make_shared<LoraLinear>(*slot.linear, shape));
  } else {
    slot.embedding->attach(use_dora ? std::make_shared<DoraEmbedding>(*slot.embedding, shape)
                                    : std::make_shared<LoraEmbedding>(*slot.embedding, shape));
  }
}

std::map<std::string, Fill> Lora::first_values_of(const Slot& slot, std::uint64_t seed) const {
  const auto keyed = [seed](Draw draw, const std::string& name) {
    return [draw = std::move(draw), key = tensor::named_key(seed, name)](const at::Tensor& t) { draw(t, key); };
  };
  return {{name_of_a(slot), keyed(draw_a(slot, init_lora_weights), slot.name + ".lora_A")},
          {name_of_b(slot), keyed(draw_b(slot, init_lora_weights), slot.name + ".lora_B")},
          {kMagnitude, [](const at::Tensor& t) { t.fill_(1); }}};  // until the weights are there
}

std::vector<FromWeight> Lora::from_weights(const nn::HookedModule& model, std::uint64_t) const {
  std::vector<FromWeight> out;
  if (!use_dora) return out;
  for (const auto& slot : adapted_slots(model)) {
    out.push_back({slot.name + ".weight", [this, slot](const at::Tensor& weight, const Values& adapters) -> Values {
                     const auto value = [&](const std::string& name) { return adapters.at(slot.name + "." + name); };
                     const auto sum = summed(slot, weight, value(name_of_a(slot)), value(name_of_b(slot)));
                     return {{slot.name + "." + kMagnitude, row_norms(sum)}};
                   }});
  }
  return out;
}

std::string Lora::file_name(const std::string& parameter) const {
  auto name = LayerMethod::file_name(parameter);
  const std::string magnitude = ".lora_magnitude_vector", leaf = ".weight";
  if (name.ends_with(magnitude + leaf)) name.resize(name.size() - leaf.size());
  return name;
}

/// W + scaling B A in float32, [out, in]; a view of another layout where the weight lies transposed.
at::Tensor Lora::summed(const Slot& slot, const at::Tensor& weight, const at::Tensor& a_in,
                        const at::Tensor& b_in) const {
  const auto w = weight.detach().to(at::kFloat), a = a_in.detach().to(at::kFloat), b = b_in.detach().to(at::kFloat);
  const double scaling = scaling_of(slot.name);
  if (slot.transposed()) return at::addmm(w, a.t(), b.t(), 1, scaling).t();
  return at::addmm(w, b, a, 1, scaling);
}

at::Tensor Lora::merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                        const Values& adapter) const {
  if (leaf != "weight") return value;
  const at::NoGradGuard no_grad;
  auto sum = summed(slot, value, adapter.at(name_of_a(slot)), adapter.at(name_of_b(slot)));
  if (const auto m = adapter.find(kMagnitude); m != adapter.end())
    sum = sum * (m->second.detach().to(at::kFloat) / row_norms(sum)).unsqueeze(1);
  return (slot.transposed() ? sum.t() : sum).to(value.scalar_type()).contiguous();
}

}  // namespace tessera::peft
