#pragma once
// Virtual tokens in front of every row: what prompt tuning (Lester et al. 2021) and its relatives have in common. They
// are ids beyond the vocabulary, so that a model treats them like other tokens; the word embedding looks their rows up
// in the prompt.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "models/model.h"
#include "tessera/nn/adapter.h"

namespace tessera::peft {

/// As PEFT: ones in the mask, no labels, token types 0, positions from 0. Rows of an encoder-decoder model are the
/// encoder's.
class VirtualTokens : public models::InputAdapter {
 public:
  /// Ids vocab_size, vocab_size + 1, ... stand for the `count` tokens.
  VirtualTokens(models::ModelKind kind, std::int64_t vocab_size, std::int64_t count)
      : kind_(kind), vocab_size_(vocab_size), count_(count) {}
  /// DataError for packed rows: only the first of their documents would see the prompt.
  models::ModelInput prepare(models::ModelInput in) const override;
  /// Predictions of the rows' own tokens.
  models::ModelOutput finish(models::ModelOutput out) const override;
  std::int64_t virtual_tokens() const override { return count_; }

 private:
  at::Tensor in_front(const at::Tensor& tokens, const at::Tensor& prefix) const;
  models::ModelKind kind_;
  std::int64_t vocab_size_, count_;
};

/// In the word embedding: rows of ids beyond the table are those of `prompt()`, [virtual tokens or more, dim]. Its
/// parameters are the model's, not the embedding's.
class PromptRows : public nn::EmbeddingAdapter {
 public:
  explicit PromptRows(std::function<at::Tensor()> prompt) : prompt_(std::move(prompt)) {}
  std::string class_name() const override { return "Embedding"; }
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;

 private:
  std::function<at::Tensor()> prompt_;
};

}  // namespace tessera::peft
