#pragma once
// What the prompt methods have in common: trained numbers for virtual tokens, which an encoder may make of others. The
// encoder trains; the file holds what it makes ("prompt_embeddings"), so a saved one is used, not trained on.
#include <functional>

#include "peft/method.h"

namespace tessera::peft {

/// A parameter of the encoder: "prompt_encoder.default." + name.
struct EncoderTensor {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::function<void(const at::Tensor&, std::uint64_t seed, const std::string& name)> draw;
};

class VirtualTokenMethod : public PeftMethod {
 public:
  std::int64_t num_virtual_tokens = 0;
  // 0: the model says it.
  std::int64_t num_transformer_submodules = 0, token_dim = 0, num_layers = 0, num_attention_heads = 0;

  void check() const override;
  void resolve(const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::string prefix() const override { return "base_model."; }
  std::string name_in_peft(const std::string& parameter) const override;
  std::string file_name(const std::string& parameter) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  Values in_file(const Values& adapters) const override;
  void check_can_merge(const nn::HookedModule& adapted) const override;

 protected:
  void bind_common(ConfigKeys& keys);
  /// What trains, the embedding first.
  virtual std::vector<EncoderTensor> encoder() const = 0;
  /// What the model uses and the file holds, [tokens, dim]; p: in the order of encoder().
  virtual at::Tensor encoded(const std::vector<at::Tensor>& p) const { return p.front(); }
  /// True where encoded() is more than the embedding.
  bool has_encoder() const { return encoder().size() > 1; }
  /// Registers the encoder below the model and returns what makes encoded() of it.
  std::function<at::Tensor()> register_encoder(models::Model& model) const;
  /// Attaches virtual tokens in front of the word embedding's. Returns its name.
  std::vector<std::string> attach_in_front(models::Model& model, const models::ModelConfig& family) const;
};

/// First values: normal; as torch.nn.Linear and torch.nn.LSTM have them (uniform by 1 / sqrt(fan)).
EncoderTensor embedding_tensor(std::int64_t rows, std::int64_t dim);
void add_linear_tensors(std::vector<EncoderTensor>& to, const std::string& name, std::int64_t in, std::int64_t out);
EncoderTensor uniform_tensor(std::string name, std::vector<std::int64_t> sizes, std::int64_t fan);
EncoderTensor zero_tensor(std::string name, std::vector<std::int64_t> sizes);

}  // namespace tessera::peft
