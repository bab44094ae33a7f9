#pragma once
// Prompt tuning (Lester et al. 2021) as PEFT has it: trained embeddings of virtual tokens in front of every row. The
// parameter is "prompt_encoder.default.embedding.weight" [num_virtual_tokens * num_transformer_submodules, dim]; of an
// encoder-decoder model PEFT stores rows for both parts and uses the encoder's.
#include "peft/methods/virtual_token_method.h"

namespace tessera::peft {

class PromptTuning final : public VirtualTokenMethod {
 public:
  std::string prompt_tuning_init = "RANDOM";  // RANDOM (normal) | SAMPLE_VOCAB (rows of random tokens) | TEXT
  std::string prompt_tuning_init_text, tokenizer_name_or_path;
  /// TEXT: the text's tokens, which the caller fills in (this room has no tokenizer). Repeated or cut to the prompt.
  std::vector<std::int64_t> init_token_ids;

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<PromptTuning>(*this); }
  std::string type() const override { return "PROMPT_TUNING"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override {
    return attach_in_front(model, family);
  }
  /// SAMPLE_VOCAB and TEXT: rows of the word embedding.
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;

 protected:
  std::vector<EncoderTensor> encoder() const override { return {embedding_tensor(rows(), token_dim)}; }

 private:
  std::int64_t rows() const { return num_virtual_tokens * num_transformer_submodules; }
  std::vector<std::int64_t> first_tokens(std::int64_t vocab_size, std::uint64_t seed) const;
};

}  // namespace tessera::peft
