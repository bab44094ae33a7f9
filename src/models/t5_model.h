#pragma once
#include <memory>
#include <string>

#include "models/model.h"
#include "models/padding.h"
#include "models/t5_stack.h"
#include "nn/ops/lookup.h"

namespace tessera::models {

/// T5, T5 v1.1, mT5 and umT5 (Raffel et al. 2020) with transformers' module and parameter names.
class T5ForConditionalGeneration : public Model {
 public:
  T5ForConditionalGeneration(const families::T5Config& config, at::ScalarType dtype);
  std::string class_name() const override { return config_.class_prefix + "ForConditionalGeneration"; }
  ModelKind kind() const override { return ModelKind::kSeq2Seq; }
  std::shared_ptr<Cache> make_cache() const override;
  /// Of the decoder's self-attention.
  PrefixSizes prefix_sizes() const override { return {config_.num_decoder_layers, config_.num_heads, config_.d_kv}; }
  void init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const override;

 protected:
  ModelOutput compute(ModelInput in) override;

 private:
  struct StepCache;
  struct Encoded;
  struct Embedded;
  /// Rows of the token table for both sequences by one lookup (so that backward makes one gradient of the table). Of
  /// the source's visible tokens, unless its encoder_output is given.
  Embedded embed(const ModelInput& in, const PackedBatch& batch, const at::Tensor& target_ids,
                 const nn::GradientSlot& slot);
  Encoded encode(const ModelInput& in, const PackedBatch& batch, const at::Tensor& embedded, ModelOutput& out);
  at::Tensor decode(const Encoded& encoded, const at::Tensor& embedded, const ModelInput& in, ModelOutput& out);
  bool loss_is_fused(const ModelInput& in);
  ModelOutput step(ModelInput in);
  at::Tensor shift_right(const at::Tensor& labels) const;
  at::Tensor logits(const at::Tensor& hidden);
  nn::Layer& head();
  void loss(const ModelInput& in, const at::Tensor& hidden, const nn::GradientSlot& slot, ModelOutput& out);
  void fused_loss(const ModelInput& in, const at::Tensor& hidden, const nn::GradientSlot& slot, ModelOutput& out);
  double normalizer(const ModelInput& in) const;

  families::T5Config config_;
  std::shared_ptr<nn::Embedding> shared_;
  std::shared_ptr<T5Stack> encoder_, decoder_;
  std::shared_ptr<nn::Linear> lm_head_;  // null when tied
};

}  // namespace tessera::models
