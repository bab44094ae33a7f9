#include "peft/methods/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include <cmath>
#include <set>

#include "base/json_text.h"
#include "peft/methods/dora_layers.h"
#include "peft/methods/lora_starts.h"
#include "peft/methods/token_rows.h"
#include "peft/methods/word_embedding.h"
#include "peft/replication/replicated_layers.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

const std::string kStartA = "lora_start_A.default", kStartB = "lora_start_B.default";
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

const std::string kBiasOfB = "lora_B.default.bias";

at::Tensor row_norms(const at::Tensor& sum) {
  return at::linalg_vector_norm(sum, 2, at::IntArrayRef{1});
}

bool is_factor(const std::string& parameter) {
  return parameter.ends_with(".lora_A.default.weight") || parameter.ends_with(".lora_B.default.weight");
}

}  // namespace

std::vector<std::string> Lora::default_targets(const models::ModelConfig& family) const {
  return family.default_lora_targets;
}

std::string Lora::name_in_patterns(const std::string& module) const {
  const auto weight = module + ".weight";
  return has_suffix(weight, target_parameters) ? weight : module;
}

std::int64_t Lora::rank_of(const std::string& module) const {
  return by_pattern(name_in_patterns(module), rank_pattern, r, "rank_pattern");
}

double Lora::scaling_of(const std::string& module) const {
  const auto rank = static_cast<double>(rank_of(module));
  const double alpha = by_pattern(name_in_patterns(module), alpha_pattern, lora_alpha, "alpha_pattern");
  return use_rslora ? alpha / std::sqrt(rank) : alpha / rank;
}

void Lora::resolve(const models::ModelConfig& family) {
  if (target_modules.empty() && target_regex.empty() && !target_parameters.empty()) return;
  LayerMethod::resolve(family);
}

std::vector<std::string> Lora::attach(models::Model& model, const models::ModelConfig& family) {
  std::vector<std::string> names;
  if (!layer_replication.is_null()) {
    replicate_layers(model, layer_replication);
    for (const auto& item : model.named_parameters())
      if (is_replicated(item.key()) && is_saved(item.key(), *this))
        refuse_setting("layer_replication",
                       "goes without modules_to_save inside the layers, found '" + item.key() + "'");
  }
  if (!alora_invocation_tokens.is_null()) activated_ = std::make_shared<ActivatedTokens>();
  if (!target_modules.empty() || !target_regex.empty()) names = LayerMethod::attach(model, family);
  const std::set<std::string> targets(names.begin(), names.end());
  for (const auto& wanted : target_parameters) {
    bool any = false;
    for (const auto& slot : slots(model)) {
      if (!slot.linear || !has_suffix(slot.name + ".weight", wanted)) continue;
      any = true;
      if (targets.contains(slot.name))
        refuse_setting("target_parameters",
                       "names the weight of '" + slot.name +
                           "', which target_modules name, too; leave it out of one of them, as in PEFT");
      if (slot.adapter()) continue;
      attach_to(slot);
      names.push_back(slot.name);
    }
    if (!any) {
      refuse_setting("target_parameters",
                     "names '" + wanted +
                         "', which is no weight of a linear layer of this model; name ends such as "
                         "mlp.gate_proj.weight");
    }
  }
  if (activated_) activate(model, family, names);
  if (mica())
    for (const auto& slot : adapted_places(model))
      if (slot.linear) freeze_b(slot);
  tokens_ = chosen_tokens(model, family);
  for (const auto& slot : slots(model)) {
    const auto ids = tokens_.find(slot.name);
    if (ids != tokens_.end())
      attach_token_rows(slot, family.output_embedding, ids->second, TokenRowsPlace::kInsideLora,
                        "trainable_token_indices");
  }
  return names;
}

void Lora::activate(models::Model& model, const models::ModelConfig& family,
                    const std::vector<std::string>& adapted) const {
  const std::string key = "alora_invocation_tokens";
  if (family.kind != models::ModelKind::kCausal) refuse_setting(key, "is for causal models");
  for (const auto& name : adapted)
    if (name == family.output_embedding || name.find(".experts.") != std::string::npos)
      refuse_setting(key,
                     "does not go with '" + name + "', which does not see all tokens; leave it out of target_modules");
  const auto words = word_embedding(model, family.vocab_size);
  if (words.adapter()) refuse_setting(key, "is for linear layers; leave '" + words.name + "' out of target_modules");
  const auto invocation = alora_invocation_tokens.get<std::vector<std::int64_t>>();
  words.embedding->attach(std::make_shared<ActivatedRows>(activated_));
  model.set_input_adapter(std::make_shared<InvocationInput>(invocation, words.weight().size(0)));
}

void Lora::check_can_merge(const nn::HookedModule& adapted) const {
  if (!alora_invocation_tokens.is_null())
    refuse_setting("alora_invocation_tokens",
                   "acts on some tokens only, so it cannot be merged into the weights; use the adapter as it is");
  if (!layer_replication.is_null())
    refuse_setting(
        "layer_replication",
        "gives the places of a layer different adapters over one weight, so it cannot be merged (PEFT adds all of "
        "them to it: another model); use the "
        "adapter as it is");
  if (!lora_bias) return;
  for (const auto& slot : adapted_slots(adapted))
    if (!slot.bias().defined())
      refuse_setting("lora_bias",
                     "cannot be merged into '" + slot.name + "', which has no bias; use the adapter as it is");
}

// A head that is tied to the table has the table's rows.
std::map<std::string, std::vector<std::int64_t>> Lora::chosen_tokens(const models::Model& model,
                                                                     const models::ModelConfig& family) const {
  std::map<std::string, std::vector<std::int64_t>> out;
  const auto& given = trainable_token_indices;
  const auto ids_of = [](const nlohmann::json& list) {
    const auto is_id = [](const auto& id) { return id.is_number_integer(); };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_id)) {
      refuse_setting("trainable_token_indices",
                     "is a list of token ids, or an object with one for each table; found " + json_text(list));
    }
    return list.template get<std::vector<std::int64_t>>();
  };
  if (given.is_null()) return out;
  if (!given.is_object()) return {{word_embedding(model, family.vocab_size).name, ids_of(given)}};
  const auto tied = tied_to_words(model, family);
  const auto is_tied = [&](const std::string& name) {
    return std::any_of(tied.begin(), tied.end(), [&](const auto& module) { return has_suffix(module, name); });
  };
  const auto all = slots(model);
  for (const auto& [name, list] : given.items()) {
    const auto slot =
        std::find_if(all.begin(), all.end(), [&, key = name](const Slot& s) { return has_suffix(s.name, key); });
    if (slot != all.end())
      out[slot->name] = ids_of(list);
    else if (!is_tied(name))
      refuse_setting("trainable_token_indices",
                     "names '" + name + "', which is no embedding and no head of this model");
  }
  for (const auto& [name, list] : given.items()) {
    if (!is_tied(name)) continue;
    const auto table = out.find(word_embedding(model, family.vocab_size).name);
    if (table == out.end() || table->second != ids_of(list))
      refuse_setting(
          "trainable_token_indices",
          "names '" + name + "', which is tied to the table of tokens and has its rows; give both the same ids");
  }
  return out;
}

std::map<std::string, Fill> Lora::first_values(const nn::HookedModule& model, std::uint64_t seed) const {
  auto out = LayerMethod::first_values(model, seed);
  for (const auto& [table, ids] : tokens_)  // until the weights are there
    out[table + "." + token_rows_name(TokenRowsPlace::kInsideLora)] = [](const at::Tensor& t) { t.zero_(); };
  return out;
}

void Lora::attach_to(const Slot& slot) const {
  const bool of_matrices = decomposes() || init_lora_weights == "orthogonal" || init_lora_weights == "loftq" || mica();
  if (!slot.linear && (lora_bias || of_matrices || activated_)) {
    refuse_setting(
        lora_bias     ? "lora_bias"
        : of_matrices ? "init_lora_weights"
                      : "alora_invocation_tokens",
        "is for linear layers with this value; leave the embedding '" + slot.name + "' out of target_modules");
  }
  const auto rank = rank_of(slot.name);
  if (rank <= 0) {
    throw ConfigError("rank_pattern: the rank of '" + slot.name + "' must be positive, found " + std::to_string(rank),
                      "rank_pattern");
  }
  if (init_lora_weights == "orthogonal" && rank % 2 != 0)
    refuse_setting("init_lora_weights", "orthogonal needs an even rank, found " + std::to_string(rank));
  const LoraShape shape{.rank = rank,
                        .scaling = scaling_of(slot.name),
                        .dropout = lora_dropout,
                        .bias = lora_bias,
                        .subtracts_start = decomposes()};
  if (slot.linear && activated_) {
    slot.attach(std::make_shared<ActivatedLoraLinear>(*slot.linear, shape, activated_));
  } else if (slot.linear) {
    slot.attach(use_dora ? std::make_shared<DoraLinear>(*slot.linear, shape)
                         : std::make_shared<LoraLinear>(*slot.linear, shape));
  } else {
    slot.embedding->attach(use_dora ? std::make_shared<DoraEmbedding>(*slot.embedding, shape)
                                    : std::make_shared<LoraEmbedding>(*slot.embedding, shape));
  }
}

void Lora::freeze_b(const Slot& slot) {
  const auto& b = dynamic_cast<const LoraLinear&>(*slot.adapter()).b->weight;
  b.set_requires_grad(false);
  frozen_ += b.numel();
}

std::map<std::string, Fill> Lora::first_values_of(const Slot& slot, std::uint64_t seed) const {
  const auto keyed = [seed](Draw draw, const std::string& name) {
    return [draw = std::move(draw), key = tensor::named_key(seed, name)](const at::Tensor& t) { draw(t, key); };
  };
  const auto zero = [](const at::Tensor& t) { t.zero_(); };
  std::map<std::string, Fill> out = {
      {name_of_a(slot), keyed(draw_a(slot, init_lora_weights), slot.name + ".lora_A")},
      {name_of_b(slot), keyed(draw_b(slot, init_lora_weights), slot.name + ".lora_B")},
      {kMagnitude, [](const at::Tensor& t) { t.fill_(1); }},  // these until the weights are there
      {kStartA, zero},
      {kStartB, zero},
      {kBiasOfB, zero}};
  if (init_lora_weights == "false") {
    out[kBiasOfB] = keyed(
        [rank = rank_of(slot.name)](const at::Tensor& t, tensor::RandomKey key) {
          const double bound = 1.0 / std::sqrt(static_cast<double>(rank));
          tensor::fill_uniform(t, key, -bound, bound);
        },
        slot.name + ".lora_B.bias");
  }
  if (init_lora_weights == "orthogonal") {
    const auto key = tensor::named_key(seed, slot.name + ".lora_Q");
    out[name_of_a(slot)] = [=, own = tensor::named_key(seed, slot.name + ".lora_A")](const at::Tensor& a) {
      a.copy_(at::mm(normal_matrix(a.size(1), a.size(0) / 2, own), orthogonal_rows(a.size(0), key, 0)).t() / 10.0);
    };
    out[name_of_b(slot)] = [=, own = tensor::named_key(seed, slot.name + ".lora_B")](const at::Tensor& b) {
      b.copy_(at::mm(normal_matrix(b.size(0), b.size(1) / 2, own), orthogonal_rows(b.size(1), key, 1)) / 10.0);
    };
  }
  return out;
}

std::vector<FromWeight> Lora::from_weights_of_saved(const nn::HookedModule& model) const {
  if (rounds() > 0) {
    refuse_setting("init_lora_weights",
                   init_lora_weights +
                       " begins with numbers that PEFT drew and the adapter does not hold, so that nobody "
                       "can use it; save it there with path_initial_model_for_weight_conversion");
  }
  if (init_lora_weights == "loftq") (void)packing_losses(model);  // checks
  return starts(model, 0);
}

void Lora::check_rank(const Slot& slot, std::int64_t rank) const {
  if (rank <= std::min(slot.linear->in_features(), slot.linear->out_features())) return;
  refuse_setting("init_lora_weights", init_lora_weights + " needs a rank of at most the smaller side of '" + slot.name +
                                          "', found " + std::to_string(rank));
}

std::vector<FromWeight> Lora::packing_losses(const nn::HookedModule& model) const {
  std::vector<FromWeight> out;
  for (const auto& slot : adapted_places(model)) {
    if (!slot.linear) continue;
    if (!slot.linear->codec()) {
      refuse_setting("init_lora_weights", "loftq stands for what packing takes from the weights, but those of '" +
                                              slot.name + "' are not packed; load the base in 4 bits (--load_in_4bit)");
    }
    const auto rank = rank_of(slot.name);
    check_rank(slot, rank);
    const auto with_stored = [slot, rank](const at::Tensor& weight, const at::Tensor& stored) -> Values {
      const auto whole = stored.to(at::kFloat);
      // PEFT's A and B leave the scaling out.
      const auto [a, b] = decomposed((slot.transposed() ? whole.t() : whole) - weight, "pissa", rank, 1.0);
      return {{slot.full_name(name_of_a(slot)), a}, {slot.full_name(name_of_b(slot)), b}};
    };
    out.push_back({slot.weight_name(), nullptr, with_stored});
  }
  return out;
}

std::vector<FromWeight> Lora::minors(const nn::HookedModule& model) const {
  std::vector<FromWeight> out;
  for (const auto& slot : adapted_places(model)) {
    if (!slot.linear) continue;
    const auto rank = rank_of(slot.name);
    check_rank(slot, rank);
    out.push_back({slot.weight_name(), [slot, rank](const at::Tensor& weight, const Values&) -> Values {
                     const auto stored = weight.detach().to(at::kFloat);
                     const auto w = slot.transposed() && !slot.linear->codec() ? stored.t() : stored;
                     const auto [a, b] = minor_components(w, rank);
                     return {{slot.full_name(name_of_a(slot)), a}, {slot.full_name(name_of_b(slot)), b}};
                   }});
  }
  return out;
}

std::vector<FromWeight> Lora::starts(const nn::HookedModule& model, std::uint64_t seed) const {
  std::vector<FromWeight> out;
  if (!decomposes()) return out;
  for (const auto& slot : adapted_places(model)) {
    if (tokens_.contains(slot.name)) continue;
    const auto rank = rank_of(slot.name);
    check_rank(slot, rank);
    out.push_back({slot.weight_name(), [this, slot, rank, seed](const at::Tensor& weight, const Values&) -> Values {
                     const auto stored = weight.detach().to(at::kFloat);
                     const auto w = slot.transposed() && !slot.linear->codec() ? stored.t() : stored;
                     const double scaling = scaling_of(slot.name);
                     auto [a, b] = rounds() > 0 ? nearly_decomposed(w, rank, scaling, rounds(),
                                                                    tensor::named_key(seed, slot.name + ".lora_Q"))
                                                : decomposed(w, init_lora_weights, rank, scaling);
                     return {{slot.full_name(kStartA), a}, {slot.full_name(kStartB), b}};
                   }});
  }
  return out;
}

std::vector<FromWeight> Lora::from_weights(const nn::HookedModule& model, std::uint64_t seed) const {
  std::vector<FromWeight> out;
  if (init_lora_weights == "loftq") out = packing_losses(model);
  if (mica()) out = minors(model);
  for (auto& start : starts(model, seed)) {
    out.push_back({start.weight, [values = start.values, module = start.weight.substr(0, start.weight.rfind('.'))](
                                     const at::Tensor& weight, const Values& adapters) {
                     auto all = values(weight, adapters);
                     all[module + ".lora_A.default.weight"] = all.at(module + "." + kStartA);
                     all[module + ".lora_B.default.weight"] = all.at(module + "." + kStartB);
                     return all;
                   }});
  }
  for (const auto& [table, ids] : tokens_) {
    out.push_back({table + ".weight", [table = table, ids = ids](const at::Tensor& weight, const Values&) -> Values {
                     return {{table + "." + token_rows_name(TokenRowsPlace::kInsideLora), rows_of(weight, ids)}};
                   }});
  }
  if (!use_dora) return out;
  for (const auto& slot : adapted_places(model)) {
    if (tokens_.contains(slot.name)) continue;
    out.push_back({slot.weight_name(), [this, slot](const at::Tensor& weight, const Values& adapters) -> Values {
                     const auto value = [&](const std::string& name) { return adapters.at(slot.full_name(name)); };
                     const auto sum = summed(slot, weight, value(name_of_a(slot)), value(name_of_b(slot)));
                     return {{slot.full_name(kMagnitude), row_norms(sum)}};
                   }});
    out.back().reads_adapters = true;
  }
  return out;
}

std::string Lora::name_in_peft(const std::string& parameter) const {
  return LayerMethod::name_in_peft(name_at_place(parameter));
}

std::string Lora::file_name(const std::string& parameter) const {
  auto name = LayerMethod::file_name(name_at_place(parameter));
  const std::string magnitude = ".lora_magnitude_vector", leaf = ".weight";
  if (name.ends_with(magnitude + leaf)) name.resize(name.size() - leaf.size());
  return name;
}

std::vector<std::string> Lora::file_names(const std::string& parameter) const {
  const bool start = parameter.ends_with("." + kStartA) || parameter.ends_with("." + kStartB);
  return start || (converts() && is_factor(parameter)) ? std::vector<std::string>()
                                                       : LayerMethod::file_names(parameter);
}

Values Lora::in_file(const Values& adapters) const {
  Values out;
  if (!converts()) return out;
  for (const auto& [name, value] : adapters) {
    if (!is_factor(name)) continue;
    const bool is_a = name.ends_with(".lora_A.default.weight");
    const auto layer = name.substr(0, name.rfind(".lora_") + 1);
    const auto start = adapters.at(layer + (is_a ? kStartA : kStartB)).to(value.scalar_type());
    out[file_name(name)] = is_a ? at::cat({value, start}, 0) : at::cat({value, start.neg()}, 1);
  }
  return out;
}

std::int64_t Lora::loftq_iterations() const {
  if (init_lora_weights != "loftq" || !loftq_config.is_object()) return 1;
  return loftq_config.value("loftq_iter", std::int64_t{1});
}

std::unique_ptr<PeftMethod> Lora::as_saved() const {
  auto saved = std::make_unique<Lora>(*this);
  // An adapter like any other, unless its base is packed in its own way.
  if ((init_lora_weights == "loftq" && loftq_iterations() == 1) || init_lora_weights == "eva") {
    saved->init_lora_weights = "true";
    saved->loftq_config = nlohmann::json::object();
    saved->eva_config = nullptr;
  }
  if (!converts()) return saved;
  const double more_alpha = use_rslora ? std::sqrt(2.0) : 2.0;
  saved->init_lora_weights = "true";
  saved->r *= 2;
  saved->lora_alpha *= more_alpha;
  for (auto& [pattern, rank] : saved->rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : saved->alpha_pattern) alpha *= more_alpha;
  return saved;
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
  const at::NoGradGuard no_grad;
  if (const auto ids = tokens_.find(slot.name); ids != tokens_.end())
    return leaf == "weight" ? with_rows(value, ids->second, adapter.at(token_rows_name(TokenRowsPlace::kInsideLora)))
                            : value;
  const auto bias_of_b = adapter.find(kBiasOfB);
  if (leaf == "bias" && bias_of_b != adapter.end()) {
    return (value.to(at::kFloat) + bias_of_b->second.detach().to(at::kFloat) * scaling_of(slot.name))
        .to(value.scalar_type());
  }
  if (leaf != "weight") return value;
  auto sum = summed(slot, value, adapter.at(name_of_a(slot)), adapter.at(name_of_b(slot)));
  if (const auto start = adapter.find(kStartA); start != adapter.end())
    sum = at::addmm(sum, adapter.at(kStartB).detach().to(at::kFloat), start->second.detach().to(at::kFloat), 1,
                    -scaling_of(slot.name));
  if (const auto m = adapter.find(kMagnitude); m != adapter.end())
    sum = sum * (m->second.detach().to(at::kFloat) / row_norms(sum)).unsqueeze(1);
  return (slot.transposed() ? sum.t() : sum).to(value.scalar_type()).contiguous();
}

}  // namespace tessera::peft
