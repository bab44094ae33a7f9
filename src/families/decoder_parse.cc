#include "families/decoder_parse.h"

#include <cmath>
#include <utility>

#include "base/nearest.h"

namespace tessera::families {

Activation parse_activation(const ConfigReader& in, const std::string& key, const std::string& fallback) {
  static const std::vector<std::pair<std::string, Activation>> kKnown = {{"relu", Activation::kRelu},
                                                                         {"gelu", Activation::kGelu},
                                                                         {"gelu_python", Activation::kGelu},
                                                                         {"gelu_new", Activation::kGeluTanh},
                                                                         {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                                                         {"gelu_python_tanh", Activation::kGeluTanh},
                                                                         {"gelu_fast", Activation::kGeluTanh},
                                                                         {"gelu_accurate", Activation::kGeluTanh},
                                                                         {"silu", Activation::kSilu},
                                                                         {"swish", Activation::kSilu},
                                                                         {"quick_gelu", Activation::kQuickGelu},
                                                                         {"relu2", Activation::kReluSquared},
                                                                         {"tanh", Activation::kTanh},
                                                                         {"sigmoid", Activation::kSigmoid},
                                                                         {"linear", Activation::kIdentity},
                                                                         {"gelu_10", Activation::kClippedGelu},
                                                                         {"relu6", Activation::kRelu6},
                                                                         {"leaky_relu", Activation::kLeakyRelu},
                                                                         {"mish", Activation::kMish},
                                                                         {"laplace", Activation::kLaplace}};
  const auto name = in.get<std::string>(key, fallback);
  std::vector<std::string> names;
  std::string listed;
  for (const auto& [known, activation] : kKnown) {
    if (known == name) return activation;
    names.push_back(known);
    listed += (listed.empty() ? "" : ", ") + known;
  }
  throw ConfigError(
      in.file() + ": " + key + " '" + name + "' is not supported (" + listed + ")" + did_you_mean(name, names), key);
}

namespace {

void require_multiple(const ConfigReader& in, const char* of, std::int64_t size, const char* key, std::int64_t value) {
  if (size % value != 0)
    throw ConfigError(in.file() + ": " + of + " (" + std::to_string(size) + ") is not a multiple of " + key + " (" +
                          std::to_string(value) + ")",
                      key);
}

}  // namespace

void parse_heads(const ConfigReader& in, DecoderConfig& c) {
  c.num_heads = in.positive("num_attention_heads", c.num_heads);
  c.num_kv_heads = in.positive("num_key_value_heads", c.num_kv_heads > 0 ? c.num_kv_heads : c.num_heads);
  require_multiple(in, "num_attention_heads", c.num_heads, "num_key_value_heads", c.num_kv_heads);
  if (!in.has("head_dim") && c.head_dim == 0)
    require_multiple(in, "hidden_size", c.hidden_size, "num_attention_heads", c.num_heads);
  c.head_dim = in.positive("head_dim", c.head_dim > 0 ? c.head_dim : c.hidden_size / c.num_heads);
}

void parse_head_count(const ConfigReader& in, DecoderConfig& c) {
  c.num_heads = in.positive("num_attention_heads", c.num_heads);
  if (c.num_kv_heads == 0) c.num_kv_heads = c.num_heads;
  require_multiple(in, "num_attention_heads", c.num_heads, "num_kv_heads", c.num_kv_heads);
  require_multiple(in, "hidden_size", c.hidden_size, "num_attention_heads", c.num_heads);
  c.head_dim = c.hidden_size / c.num_heads;
}

void require_equal_heads(const ConfigReader& in, const DecoderConfig& c) {
  require_multiple(in, "hidden_size", c.hidden_size, "num_attention_heads", c.num_heads);
  require(in, "head_dim", c.hidden_size / c.num_heads,
          "other than hidden_size / num_attention_heads is not known to this family");
}

std::int64_t padding_row(const ConfigReader& in, std::int64_t fallback, std::int64_t rows) {
  if (in.contains("pad_token_id") ? !in.has("pad_token_id") : fallback < 0) return -1;
  const auto id = in.token("pad_token_id", fallback), row = id < 0 ? id + rows : id;
  if (row >= 0 && row < rows) return row;
  throw ConfigError(
      in.file() + ": pad_token_id " + std::to_string(id) + " lies outside of the vocabulary of " + std::to_string(rows),
      "pad_token_id");
}

std::string classifier_class(const DecoderConfig& config) {
  const std::string& base = config.classes.base;  // "LlamaModel"
  return base.substr(0, base.rfind("Model")) + "ForSequenceClassification";
}

void finish(const ConfigReader& in, DecoderConfig& c) {
  if (c.embedding_size == 0) c.embedding_size = c.hidden_size;
  const auto layers = static_cast<std::size_t>(c.num_layers);
  if (c.attention_scale.empty()) c.attention_scale.assign(layers, std::pow(static_cast<double>(c.head_dim), -0.5));
  if (c.attention_window.empty()) c.attention_window.assign(layers, 0);
  c.bos_token_id = in.token("bos_token_id", c.bos_token_id);
  c.eos_token_id = in.token("eos_token_id", c.eos_token_id);
  const bool has_pad = in.contains("pad_token_id") ? in.has("pad_token_id") : c.pad_token_id >= 0;
  if (has_pad) c.given_pad_token_id = in.token("pad_token_id", c.pad_token_id);
  c.pad_token_id = in.token("pad_token_id", c.pad_token_id >= 0 ? c.pad_token_id : c.eos_token_id);
  if (c.pad_token_id < 0) c.pad_token_id = c.padding_idx >= 0 ? c.padding_idx : c.eos_token_id;
  c.initializer_range = in.get<double>("initializer_range", c.initializer_range);
  c.stored_dtype = stored_dtype(in);
  if (is_classifier(in)) c.classifier = parse_classifier(in);
}

}  // namespace tessera::families
