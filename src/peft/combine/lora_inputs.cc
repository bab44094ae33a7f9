#include "peft/combine/lora_inputs.h"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <optional>

#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "peft/targets.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

[[noreturn]] void refuse(const LoraInput& input, const std::string& key, const std::string& why) {
  throw ConfigError(fmt::format("adapter '{}' ({}): {}", input.name, input.folder, why), key);
}

void check_combines(const LoraInput& input) {
  const auto& c = input.config;
  const auto unless = [&](bool fine, const char* key, const std::string& why) {
    if (!fine) refuse(input, key, why + "; merge it into its base model instead");
  };
  unless(!c.use_dora, "use_dora", "DoRA (use_dora) scales whole rows of the weights and cannot be added up");
  unless(c.bias == "none", "bias", "bias is '" + c.bias + "': trained biases belong to one adapter alone");
  unless(!c.lora_bias, "lora_bias", "lora_bias is true, and biases of B are not combined");
  unless(c.target_parameters.empty(), "target_parameters", "target_parameters cannot be combined, as in PEFT");
  unless(c.trainable_token_indices.is_null(), "trainable_token_indices",
         "trainable_token_indices replace rows of the embedding and cannot be added up");
  if (!c.layer_replication.is_null())
    refuse(input, "layer_replication", "layer_replication: it is for another stack of layers, so it adds up with none");
  const auto& init = c.init_lora_weights;
  unless(!init.starts_with("pissa") && init != "olora" && init != "loftq", "init_lora_weights",
         "init_lora_weights is " + init + ", which changes the base model");
  if (!c.alora_invocation_tokens.is_null())
    refuse(input, "alora_invocation_tokens",
           "alora_invocation_tokens: it acts on some tokens only, so it adds up with none");
}

/// What follows "base_model.model." in front of `end`; unset: the name ends otherwise.
std::optional<std::string> module_before(const std::string& name, const std::string& end) {
  const std::string prefix = "base_model.model.";
  if (!name.starts_with(prefix) || !name.ends_with(end) || name.size() <= prefix.size() + end.size())
    return std::nullopt;
  return name.substr(prefix.size(), name.size() - prefix.size() - end.size());
}

struct Pair {
  std::string module, a, b;
};

/// The layer that a tensor is the A of.
std::optional<Pair> pair_of(const std::string& name) {
  for (const std::string form : {".lora_A.weight", ".lora_embedding_A"}) {
    const auto module = module_before(name, form);
    if (!module) continue;
    auto b = name;
    b[b.size() - (form.ends_with(".weight") ? 8 : 1)] = 'B';
    return Pair{*module, name, b};
  }
  return std::nullopt;
}

bool is_b(const std::string& name) {
  return module_before(name, ".lora_B.weight") || module_before(name, ".lora_embedding_B");
}

class Collector {
 public:
  explicit Collector(const std::vector<LoraInput>& inputs) : inputs_(inputs) {}

  LoraLayers collect() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      for (const auto& info : inputs_[i].source->tensors()) {
        if (const auto pair = pair_of(info.name)) {
          add_layer(i, info, *pair);
        } else if (!is_b(info.name)) {
          add_other(i, info);
        }
      }
    }
    return std::move(out_);
  }

 private:
  void add_layer(std::size_t i, const io::TensorInfo& a, const Pair& pair) {
    const auto& input = inputs_[i];
    const auto* b = input.source->find(pair.b);
    if (!b) throw DataError(fmt::format("{} lacks the tensor '{}'", a.file, pair.b), a.file);
    const auto rank = input.config.rank_of(pair.module);
    if (a.shape.size() != 2 || b->shape.size() != 2 || a.shape[0] != rank || b->shape[1] != rank) {
      throw DataError(
          fmt::format("{}: '{}' and '{}' must be [{}, in] and [out, {}], as r and rank_pattern of "
                      "adapter_config.json say; found {} and {}",
                      a.file, pair.a, pair.b, rank, rank, tensor::shape_text(a.shape), tensor::shape_text(b->shape)),
          a.file);
    }
    auto& place =
        out_.layers.try_emplace(pair.module, LoraPlace{pair.a, pair.b, a.shape[1], b->shape[0]}).first->second;
    if (place.in != a.shape[1] || place.out != b->shape[0] || place.a != pair.a) {
      const auto& first = inputs_[place.shares[0].input];
      refuse(input, "adapter",
             fmt::format("'{}' adapts {} -> {} values, in '{}' it is {} -> {}: they are of different base models",
                         pair.module, a.shape[1], b->shape[0], first.name, place.in, place.out));
    }
    place.shares.push_back({i, rank, input.config.scaling_of(pair.module)});
  }

  void add_other(std::size_t i, const io::TensorInfo& info) {
    const auto [first, is_new] = out_.others.try_emplace(info.name, i);
    if (is_new) return;
    const auto& other = *inputs_[first->second].source;
    if (is_trained(i, info.name) || is_trained(first->second, info.name)) {
      refuse(inputs_[i], "modules_to_save",
             fmt::format("'{}' of modules_to_save is in adapter '{}', too; modules that were trained whole cannot be "
                         "combined",
                         info.name, inputs_[first->second].name));
    }
    if (other.find(info.name)->shape != info.shape ||
        !at::equal(io::read_tensor(other, info.name), io::read_tensor(*inputs_[i].source, info.name))) {
      refuse(inputs_[i], "adapter",
             fmt::format("'{}' differs from that of adapter '{}': they are of different base models", info.name,
                         inputs_[first->second].name));
    }
  }

  bool is_trained(std::size_t i, const std::string& name) const { return is_saved(name, inputs_[i].config); }

  const std::vector<LoraInput>& inputs_;
  LoraLayers out_;
};

}  // namespace

LoraInput open_lora(const std::string& name, const std::string& folder) {
  const auto method = read_adapter_config(folder);
  const auto* lora = dynamic_cast<const Lora*>(method.get());
  if (!lora) {
    throw ConfigError(fmt::format("adapter '{}' ({}): peft_type is {}; only LoRA adapters are combined", name, folder,
                                  method->type()),
                      "peft_type");
  }
  LoraInput input{name, folder, *lora};
  check_combines(input);
  input.source = io::open_weights(adapter_weights_in(folder));
  return input;
}

LoraLayers lora_layers(const std::vector<LoraInput>& inputs) {
  return Collector(inputs).collect();
}

}  // namespace tessera::peft
