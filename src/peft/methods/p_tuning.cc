#include "peft/methods/p_tuning.h"

#include <ATen/ops/lstm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include "nn/ops/matmul.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void PTuning::bind(ConfigKeys& keys) {
  bind_common(keys);
  keys.text("encoder_reparameterization_type", encoder_reparameterization_type);
  keys.integer("encoder_hidden_size", encoder_hidden_size);
  keys.integer("encoder_num_layers", encoder_num_layers);
  keys.unsupported("encoder_dropout", 0.0);
}

void PTuning::check() const {
  VirtualTokenMethod::check();
  if (encoder_reparameterization_type != "MLP" && encoder_reparameterization_type != "LSTM") {
    throw ConfigError("encoder_reparameterization_type is MLP or LSTM; found '" + encoder_reparameterization_type + "'",
                      "encoder_reparameterization_type");
  }
  if (encoder_num_layers < 1) throw ConfigError("encoder_num_layers must be at least 1", "encoder_num_layers");
  if (encoder_hidden_size < 0) throw ConfigError("encoder_hidden_size must be positive", "encoder_hidden_size");
}

void PTuning::resolve(const models::ModelConfig& family) {
  VirtualTokenMethod::resolve(family);
  if (encoder_hidden_size == 0) encoder_hidden_size = token_dim;
}

std::vector<EncoderTensor> PTuning::encoder() const {
  const auto h = encoder_hidden_size, d = token_dim;
  std::vector<EncoderTensor> out = {embedding_tensor(num_virtual_tokens * num_transformer_submodules, d)};
  if (inference_mode) return out;
  if (encoder_reparameterization_type == "MLP") {
    add_linear_tensors(out, "mlp_head.0", d, h);
    add_linear_tensors(out, "mlp_head.2", h, h);
    add_linear_tensors(out, "mlp_head.4", h, d);
    return out;
  }
  for (std::int64_t layer = 0; layer < encoder_num_layers; ++layer) {
    for (const char* way : {"", "_reverse"}) {
      const auto name = [&](const char* part) {
        return std::string("lstm_head.") + part + std::to_string(layer) + way;
      };
      out.push_back(uniform_tensor(name("weight_ih_l"), {4 * h, layer == 0 ? d : 2 * h}, h));
      out.push_back(uniform_tensor(name("weight_hh_l"), {4 * h, h}, h));
      out.push_back(uniform_tensor(name("bias_ih_l"), {4 * h}, h));
      out.push_back(uniform_tensor(name("bias_hh_l"), {4 * h}, h));
    }
  }
  add_linear_tensors(out, "mlp_head.0", 2 * h, 2 * h);
  add_linear_tensors(out, "mlp_head.2", 2 * h, d);
  return out;
}

at::Tensor PTuning::encoded(const std::vector<at::Tensor>& p) const {
  if (p.size() == 1) return p.front();
  auto x = p.front();
  std::size_t next = 1;
  if (encoder_reparameterization_type == "LSTM") {
    const auto count = static_cast<std::size_t>(8 * encoder_num_layers);
    const std::vector<at::Tensor> weights(p.begin() + 1, p.begin() + 1 + static_cast<std::ptrdiff_t>(count));
    const auto state = at::zeros({2 * encoder_num_layers, 1, encoder_hidden_size}, x.options());
    x = std::get<0>(at::lstm(x.unsqueeze(0), {state, state}, weights, /*has_biases=*/true, encoder_num_layers,
                             /*dropout=*/0.0, /*train=*/true, /*bidirectional=*/true, /*batch_first=*/true))
            .squeeze(0);
    next += count;
  }
  for (; next + 3 < p.size(); next += 2) x = at::relu(nn::linear(x, p[next], p[next + 1]));
  return nn::linear(x, p[next], p[next + 1]);
}

}  // namespace tessera::peft
