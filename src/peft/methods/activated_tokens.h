#pragma once
// Activated LoRA (Greenewald et al. 2025), as PEFT has it: an adapter acts on the tokens of a row from the start of the
// last invocation sequence in it; before that, and in rows without one, the base computes alone.
//
// Layers see tokens without padding, so tokens say themselves whether they are active: their ids are raised beyond the
// vocabulary, which the word embedding undoes.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/model.h"
#include "peft/methods/lora_layers.h"

namespace tessera::peft {

/// alora_invocation_tokens: null or a list of ids. ConfigError for anything else.
void check_invocation(const nlohmann::json& tokens);

/// Of the pass that runs now, or whose backward does.
struct ActivatedTokens {
  at::Tensor places;        // int64, ascending: where the adapter acts, among the tokens
  std::int64_t tokens = 0;  // how many there are
};

/// Finds the invocations. While decoding with a cache the new tokens of a row are active if its prompt has one.
class InvocationInput : public models::InputAdapter {
 public:
  InvocationInput(std::vector<std::int64_t> invocation, std::int64_t vocab_size)
      : invocation_(std::move(invocation)), vocab_size_(vocab_size) {}
  models::ModelInput prepare(models::ModelInput in) const override;
  models::ModelOutput finish(models::ModelOutput out) const override { return out; }
  std::int64_t virtual_tokens() const override { return 0; }
  const std::vector<std::int64_t>& invocation() const { return invocation_; }

 private:
  struct Decoding {
    std::weak_ptr<models::Cache> cache;
    at::Tensor active;  // [rows of the prompts] bool
  };
  at::Tensor of_new_tokens(const models::ModelInput& in) const;
  std::vector<std::int64_t> invocation_;
  std::int64_t vocab_size_;
  mutable std::vector<Decoding> decoding_;
};

/// [B, S] bool. A position that does not follow its predecessor by one (position_ids: [B, S] or undefined) starts
/// another document, with invocations of its own.
at::Tensor active_tokens(const at::Tensor& input_ids, const at::Tensor& position_ids,
                         const std::vector<std::int64_t>& invocation);

/// On the word embedding: notes which tokens are active, and looks up what they are.
class ActivatedRows : public nn::EmbeddingAdapter {
 public:
  explicit ActivatedRows(std::shared_ptr<ActivatedTokens> tokens) : tokens_(std::move(tokens)) {}
  std::string class_name() const override { return "Embedding"; }
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;

 private:
  std::shared_ptr<ActivatedTokens> tokens_;
};

class ActivatedLoraLinear : public LoraLinear {
 public:
  ActivatedLoraLinear(const nn::Linear& layer, const LoraShape& shape, std::shared_ptr<const ActivatedTokens> tokens)
      : LoraLinear(layer, shape), tokens_(std::move(tokens)) {}
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override;
  std::optional<nn::LowRank> plain_low_rank(const nn::Linear&) const override { return std::nullopt; }

 private:
  std::shared_ptr<const ActivatedTokens> tokens_;
};

}  // namespace tessera::peft
