#pragma once
// P-tuning (Liu et al. 2021) as PEFT has it: virtual tokens as in prompt tuning, whose embeddings an MLP or an LSTM
// makes of trained ones.
#include "peft/methods/virtual_token_method.h"

namespace tessera::peft {

class PTuning final : public VirtualTokenMethod {
 public:
  std::string encoder_reparameterization_type = "MLP";  // MLP | LSTM
  std::int64_t encoder_hidden_size = 0;                 // 0: token_dim
  std::int64_t encoder_num_layers = 2;                  // of the LSTM

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<PTuning>(*this); }
  std::string type() const override { return "P_TUNING"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override {
    return attach_in_front(model, family);
  }

 protected:
  std::vector<EncoderTensor> encoder() const override;
  at::Tensor encoded(const std::vector<at::Tensor>& p) const override;
};

}  // namespace tessera::peft
