#include "peft/prompt_tuning.h"

#include <ATen/ops/tensor.h>

#include "families/config_reader.h"
#include "models/gguf_model.h"
#include "nn/layers/container.h"
#include "peft/virtual_tokens.h"
#include "peft/within/word_embedding.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

const std::string kPrompt = "prompt_encoder.default.embedding.weight";

/// The first of these keys of config.json.
std::int64_t first_of(const families::ConfigReader& config, const std::vector<std::string>& keys) {
  for (const auto& key : keys)
    if (config.has(key)) return config.get<std::int64_t>(key, 0);
  return 0;
}

}  // namespace

void PromptTuning::bind(ConfigKeys& keys) {
  keys.integer("num_virtual_tokens", num_virtual_tokens);
  keys.integer("num_transformer_submodules", num_transformer_submodules);
  keys.integer("token_dim", token_dim);
  keys.integer("num_layers", num_layers);
  keys.integer("num_attention_heads", num_attention_heads);
  keys.text("prompt_tuning_init", prompt_tuning_init);
  keys.text("prompt_tuning_init_text", prompt_tuning_init_text);
  keys.text("tokenizer_name_or_path", tokenizer_name_or_path);
  keys.ignored("tokenizer_kwargs", nullptr);
}

void PromptTuning::check() const {
  if (num_virtual_tokens < 1)
    throw ConfigError("num_virtual_tokens must be at least 1, found " + std::to_string(num_virtual_tokens),
                      "num_virtual_tokens");
  if (prompt_tuning_init != "RANDOM" && prompt_tuning_init != "SAMPLE_VOCAB" && prompt_tuning_init != "TEXT")
    throw ConfigError("prompt_tuning_init is one of RANDOM, SAMPLE_VOCAB, TEXT; found '" + prompt_tuning_init + "'",
                      "prompt_tuning_init");
  if (prompt_tuning_init == "TEXT" && prompt_tuning_init_text.empty() && !inference_mode)
    throw ConfigError("prompt_tuning_init TEXT needs prompt_tuning_init_text", "prompt_tuning_init_text");
}

void PromptTuning::resolve(const models::ModelConfig& family) {
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

std::vector<std::string> PromptTuning::attach(models::Model& model, const models::ModelConfig& family) {
  const auto words = word_embedding(model, family.vocab_size);
  const auto dim = words.weight().size(1);
  if (token_dim != dim) {
    throw ConfigError("token_dim is " + std::to_string(token_dim) + ", but the model's word embedding has rows of " +
                          std::to_string(dim) + " numbers",
                      "token_dim");
  }
  auto encoder = std::make_shared<nn::AdapterModule>("ModuleDict");
  auto embedding = std::make_shared<nn::Container>("PromptEmbedding");
  auto table = std::make_shared<nn::Container>("Embedding");  // the word embedding reads it: never a unit
  const auto prompt = table->register_parameter("weight", nn::make_parameter({rows(), dim}, at::kFloat));
  model.register_module("prompt_encoder", encoder);
  encoder->register_module("default", embedding)->register_module("embedding", table);
  words.embedding->attach(std::make_shared<PromptRows>(prompt));
  model.set_input_adapter(std::make_shared<VirtualTokens>(family.kind, family.vocab_size, num_virtual_tokens));
  return {words.name};
}

std::map<std::string, Fill> PromptTuning::first_values(const nn::HookedModule&, std::uint64_t seed) const {
  return {{kPrompt, [key = tensor::named_key(seed, "prompt_encoder")](const at::Tensor& t) {
             tensor::fill_normal(t, key, 0.0, 1.0);
           }}};
}

std::vector<std::int64_t> PromptTuning::first_tokens(std::int64_t vocab_size, std::uint64_t seed) const {
  std::vector<std::int64_t> ids;
  const auto key = tensor::named_key(seed, "prompt_encoder tokens");
  for (std::int64_t i = 0; i < rows(); ++i) {
    const auto random = [&] { return tensor::random_bits(key, static_cast<std::uint32_t>(i)) % vocab_size; };
    ids.push_back(prompt_tuning_init == "TEXT" ? init_token_ids.at(i % init_token_ids.size()) : random());
  }
  return ids;
}

std::vector<FromWeight> PromptTuning::from_weights(const nn::HookedModule& model, std::uint64_t seed) const {
  if (prompt_tuning_init == "RANDOM") return {};
  if (prompt_tuning_init == "TEXT" && init_token_ids.empty())
    throw ConfigError("prompt_tuning_init_text has no tokens", "prompt_tuning_init_text");
  for (const auto& slot : adapted_slots(model)) {
    const auto ids = first_tokens(slot.weight().size(0), seed);
    return {{slot.name + ".weight", [ids](const at::Tensor& table, const Values&) -> Values {
               return {{kPrompt, table.index_select(0, at::tensor(ids, at::TensorOptions().dtype(at::kLong)))}};
             }}};
  }
  return {};
}

std::string PromptTuning::name_in_peft(const std::string& parameter) const {
  return parameter == kPrompt ? parameter : PeftMethod::name_in_peft(parameter);
}

std::string PromptTuning::file_name(const std::string&) const {
  return "prompt_embeddings";
}

void PromptTuning::check_can_merge() const {
  throw ConfigError("prompt tuning changes no weights, so it cannot be merged; use the adapter as it is", "peft_type");
}

}  // namespace tessera::peft
