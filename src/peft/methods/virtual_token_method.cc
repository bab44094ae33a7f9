#include "peft/methods/virtual_token_method.h"

#include <cmath>

#include "families/config_reader.h"
#include "models/gguf_model.h"
#include "nn/layers/container.h"
#include "peft/methods/virtual_tokens.h"
#include "peft/methods/word_embedding.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

const std::string kEncoder = "prompt_encoder.default.";

/// The first of these keys of config.json.
std::int64_t first_of(const families::ConfigReader& config, const std::vector<std::string>& keys) {
  for (const auto& key : keys)
    if (config.has(key)) return config.get<std::int64_t>(key, 0);
  return 0;
}

/// The containers that `path` ("mlp_head.0") names below `top`.
std::shared_ptr<torch::nn::Module> container(const std::shared_ptr<torch::nn::Module>& top, const std::string& path) {
  const auto dot = path.find('.');
  const auto name = path.substr(0, dot);
  const auto children = top->named_children();
  const auto* known = children.find(name);
  const auto module = known ? *known : std::shared_ptr<torch::nn::Module>(std::make_shared<nn::Container>(name));
  if (!known) top->register_module(name, module);
  return dot == std::string::npos ? module : container(module, path.substr(dot + 1));
}

}  // namespace

EncoderTensor embedding_tensor(std::int64_t rows, std::int64_t dim) {
  return {"embedding.weight", {rows, dim}, [](const at::Tensor& t, std::uint64_t seed, const std::string&) {
            tensor::fill_normal(t, tensor::named_key(seed, "prompt_encoder"), 0.0, 1.0);
          }};
}

EncoderTensor uniform_tensor(std::string name, std::vector<std::int64_t> sizes, std::int64_t fan) {
  return {std::move(name), std::move(sizes), [fan](const at::Tensor& t, std::uint64_t seed, const std::string& full) {
            const double bound = 1.0 / std::sqrt(static_cast<double>(fan));
            tensor::fill_uniform(t, tensor::named_key(seed, full), -bound, bound);
          }};
}

EncoderTensor zero_tensor(std::string name, std::vector<std::int64_t> sizes) {
  return {std::move(name), std::move(sizes), [](const at::Tensor& t, std::uint64_t, const std::string&) { t.zero_(); }};
}

void add_linear_tensors(std::vector<EncoderTensor>& to, const std::string& name, std::int64_t in, std::int64_t out) {
  to.push_back(uniform_tensor(name + ".weight", {out, in}, in));
  to.push_back(uniform_tensor(name + ".bias", {out}, in));
}

void VirtualTokenMethod::bind_common(ConfigKeys& keys) {
  keys.integer("num_virtual_tokens", num_virtual_tokens);
  keys.integer("num_transformer_submodules", num_transformer_submodules);
  keys.integer("token_dim", token_dim);
  keys.integer("num_layers", num_layers);
  keys.integer("num_attention_heads", num_attention_heads);
}

void VirtualTokenMethod::check() const {
  if (num_virtual_tokens < 1)
    throw ConfigError("num_virtual_tokens must be at least 1, found " + std::to_string(num_virtual_tokens),
                      "num_virtual_tokens");
}

void VirtualTokenMethod::resolve(const models::ModelConfig& family) {
  const auto document = models::read_model_config(family.folder);
  const families::ConfigReader config(document, family.folder + "/config.json");
  const auto fill = [&](std::int64_t& value, const std::vector<std::string>& keys) {
    if (value == 0) value = first_of(config, keys);
  };
  fill(num_layers, {"num_hidden_layers", "num_layers", "n_layer"});
  fill(token_dim, {"hidden_size", "n_embd", "d_model"});
  fill(num_attention_heads, {"num_attention_heads", "n_head", "num_heads"});
  if (num_transformer_submodules == 0) num_transformer_submodules = family.kind == models::ModelKind::kSeq2Seq ? 2 : 1;
}

std::function<at::Tensor()> VirtualTokenMethod::register_encoder(models::Model& model) const {
  const auto top = std::make_shared<nn::AdapterModule>("ModuleDict");
  model.register_module("prompt_encoder", top);
  std::vector<at::Tensor> parameters;
  for (const auto& tensor : encoder()) {
    const auto name = "default." + tensor.name;
    const auto dot = name.rfind('.');
    parameters.push_back(container(top, name.substr(0, dot))
                             ->register_parameter(name.substr(dot + 1), nn::make_parameter(tensor.sizes, at::kFloat)));
  }
  std::shared_ptr<const PeftMethod> copy = clone();
  return [copy, parameters] { return dynamic_cast<const VirtualTokenMethod&>(*copy).encoded(parameters); };
}

std::vector<std::string> VirtualTokenMethod::attach_in_front(models::Model& model,
                                                             const models::ModelConfig& family) const {
  const auto words = word_embedding(model, family.vocab_size);
  const auto dim = words.weight().size(1);
  if (token_dim != dim) {
    throw ConfigError("token_dim is " + std::to_string(token_dim) + ", but the model's word embedding has rows of " +
                          std::to_string(dim) + " numbers",
                      "token_dim");
  }
  if (is_saved(words.name, *this)) {
    throw ConfigError("modules_to_save: '" + words.name +
                          "' would train here, but PEFT looks the rows behind virtual tokens up in the base model's "
                          "table; leave it out",
                      "modules_to_save");
  }
  words.embedding->attach(std::make_shared<PromptRows>(register_encoder(model)));
  model.set_input_adapter(std::make_shared<VirtualTokens>(family.kind, family.vocab_size, num_virtual_tokens));
  return {words.name};
}

std::map<std::string, Fill> VirtualTokenMethod::first_values(const nn::HookedModule&, std::uint64_t seed) const {
  std::map<std::string, Fill> out;
  for (const auto& tensor : encoder())
    out[kEncoder + tensor.name] = [draw = tensor.draw, seed, name = kEncoder + tensor.name](const at::Tensor& t) {
      draw(t, seed, name);
    };
  return out;
}

std::string VirtualTokenMethod::name_in_peft(const std::string& parameter) const {
  return parameter.starts_with(kEncoder) ? parameter : PeftMethod::name_in_peft(parameter);
}

std::string VirtualTokenMethod::file_name(const std::string& parameter) const {
  return parameter.starts_with(kEncoder) ? "prompt_embeddings" : PeftMethod::file_name(parameter);
}

std::vector<std::string> VirtualTokenMethod::file_names(const std::string& parameter) const {
  if (has_encoder() && parameter.starts_with(kEncoder)) return {};  // in_file() has it
  return {file_name(parameter)};
}

Values VirtualTokenMethod::in_file(const Values& adapters) const {
  if (!has_encoder()) return {};
  std::vector<at::Tensor> parameters;
  for (const auto& tensor : encoder()) parameters.push_back(adapters.at(kEncoder + tensor.name).to(at::kFloat));
  return {{"prompt_embeddings", encoded(parameters).contiguous()}};
}

void VirtualTokenMethod::check_can_merge(const nn::HookedModule&) const {
  throw ConfigError(type() + " changes no weights, so it cannot be merged; use the adapter as it is", "peft_type");
}

}  // namespace tessera::peft
