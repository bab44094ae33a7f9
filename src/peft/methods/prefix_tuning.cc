#include "peft/methods/prefix_tuning.h"

#include <ATen/ops/tanh.h>

#include "families/config_reader.h"
#include "models/gguf_model.h"
#include "nn/ops/matmul.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

class PrefixInput : public models::InputAdapter {
 public:
  explicit PrefixInput(std::function<at::Tensor()> prefix) : prefix_(std::move(prefix)) {}
  models::ModelInput prepare(models::ModelInput in) const override {
    if (in.cache && !in.cache->empty()) return in;
    in.prefix = prefix_();
    return in;
  }
  models::ModelOutput finish(models::ModelOutput out) const override { return out; }
  std::int64_t virtual_tokens() const override { return 0; }  // no rows of the input

 private:
  std::function<at::Tensor()> prefix_;
};

}  // namespace

void PrefixTuning::bind(ConfigKeys& keys) {
  bind_common(keys);
  keys.integer("encoder_hidden_size", encoder_hidden_size);
  keys.flag("prefix_projection", prefix_projection);
  keys.text("init_weights", init_weights);
}

void PrefixTuning::check() const {
  VirtualTokenMethod::check();
  if (!init_weights.empty() && init_weights != "zero")
    throw ConfigError("init_weights of PREFIX_TUNING is null or zero; found '" + init_weights + "'", "init_weights");
}

// Of models with fewer heads of keys than of queries, PEFT takes the former.
void PrefixTuning::resolve(const models::ModelConfig& family) {
  const bool own_dim = token_dim != 0;
  const auto document = models::read_model_config(family.folder);
  const families::ConfigReader config(document, family.folder + "/config.json");
  VirtualTokenMethod::resolve(family);
  const bool saved = inference_mode && own_dim;
  if (!saved && config.has("num_key_value_heads")) {
    const auto heads = config.get<std::int64_t>("num_key_value_heads", num_attention_heads);
    token_dim = token_dim / num_attention_heads * heads;
    num_attention_heads = heads;
  }
  if (encoder_hidden_size == 0) encoder_hidden_size = token_dim;
}

std::vector<std::string> PrefixTuning::attach(models::Model& model, const models::ModelConfig& family) {
  const auto sizes = model.prefix_sizes();
  if (sizes.layers == 0) {
    throw ConfigError("PREFIX_TUNING is not for model type '" + family.model_type +
                          "' with relative positions; PROMPT_TUNING and P_TUNING are for all",
                      "peft_type");
  }
  // PEFT counts an encoder-decoder model's encoder; a decoder of fewer layers leaves the rest alone.
  if (num_layers < sizes.layers) {
    throw ConfigError("num_layers is " + std::to_string(num_layers) + ", but the model's decoder has " +
                          std::to_string(sizes.layers) + " layers; set num_layers to " + std::to_string(sizes.layers),
                      "num_layers");
  }
  if (num_attention_heads != sizes.heads || token_dim != sizes.heads * sizes.head_dim) {
    throw ConfigError("num_attention_heads and token_dim are " + std::to_string(num_attention_heads) + " and " +
                          std::to_string(token_dim) + ", but the model's keys have " + std::to_string(sizes.heads) +
                          " heads of " + std::to_string(sizes.head_dim) + " numbers; set token_dim to " +
                          std::to_string(sizes.heads * sizes.head_dim),
                      "token_dim");
  }
  if (family.kind == models::ModelKind::kSeq2Seq && num_transformer_submodules != 2) {
    throw ConfigError("num_transformer_submodules of an encoder-decoder model is 2 in PREFIX_TUNING, found " +
                          std::to_string(num_transformer_submodules),
                      "num_transformer_submodules");
  }
  const auto made = register_encoder(model);
  const auto view = [made, v = num_virtual_tokens, l = 2 * num_layers, h = num_attention_heads,
                     d = token_dim / num_attention_heads] { return made().view({v, l, h, d}).transpose(0, 1); };
  model.set_input_adapter(std::make_shared<PrefixInput>(view));
  return {"prompt_encoder"};
}

std::vector<EncoderTensor> PrefixTuning::encoder() const {
  const auto wide = 2 * num_layers * token_dim;
  if (prefix_projection && !inference_mode) {
    std::vector<EncoderTensor> out = {embedding_tensor(num_virtual_tokens, token_dim)};
    add_linear_tensors(out, "transform.0", token_dim, encoder_hidden_size);
    if (init_weights == "zero") {
      out.push_back(zero_tensor("transform.2.weight", {wide, encoder_hidden_size}));
      out.push_back(zero_tensor("transform.2.bias", {wide}));
    } else {
      add_linear_tensors(out, "transform.2", encoder_hidden_size, wide);
    }
    return out;
  }
  if (init_weights == "zero") return {zero_tensor("embedding.weight", {num_virtual_tokens, wide})};
  return {embedding_tensor(num_virtual_tokens, wide)};
}

at::Tensor PrefixTuning::encoded(const std::vector<at::Tensor>& p) const {
  if (p.size() == 1) return p.front();
  return nn::linear(at::tanh(nn::linear(p[0], p[1], p[2])), p[3], p[4]);
}

}  // namespace tessera::peft
