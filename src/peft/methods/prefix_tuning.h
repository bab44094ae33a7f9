#pragma once
// Prefix tuning (Li and Liang 2021) as PEFT has it: trained keys and values in front of every layer's, keys without
// rotary positions; the row's own tokens stand at the positions after them. In an encoder-decoder model the decoder's
// self-attention has them.
#include "peft/methods/virtual_token_method.h"

namespace tessera::peft {

class PrefixTuning final : public VirtualTokenMethod {
 public:
  std::int64_t encoder_hidden_size = 0;  // 0: token_dim
  bool prefix_projection = false;        // an MLP makes the prefix of an embedding
  std::string init_weights;              // empty, or zero: an empty start

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<PrefixTuning>(*this); }
  std::string type() const override { return "PREFIX_TUNING"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;

 protected:
  std::vector<EncoderTensor> encoder() const override;
  at::Tensor encoded(const std::vector<at::Tensor>& p) const override;
};

}  // namespace tessera::peft
