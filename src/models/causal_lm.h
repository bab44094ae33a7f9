#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/decoder_batch.h"
#include "models/decoder_layers.h"
#include "models/model.h"
#include "models/rotary_cache.h"
#include "nn/ops/lookup.h"
#include "tessera/nn/embedding.h"

namespace tessera::models {

/// A decoder with a language-modelling head: any family that a DecoderConfig describes, with transformers' module and
/// parameter names. Works on the visible tokens of all rows at once. With a cache it returns the logits of each row's
/// last token only, [R, 1, V].
class CausalLm : public Model {
 public:
  CausalLm(families::DecoderConfig config, at::ScalarType dtype);
  std::string class_name() const override { return config_.classes.causal; }
  ModelKind kind() const override { return ModelKind::kCausal; }
  std::shared_ptr<Cache> make_cache() const override;
  void init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const override;
  bool untie_head() override;
  PrefixSizes prefix_sizes() const override {
    const auto heads = config_.prefix_of_query_heads ? config_.num_heads : config_.num_kv_heads;
    return {static_cast<std::int64_t>(order_.size()), heads, config_.head_dim};
  }
  /// The layers run in this order from now on, some perhaps several times, some not at all: for layers that are told
  /// apart by their place (models/layer_place.h).
  void set_layer_order(std::vector<std::size_t> order) {
    order_ = std::move(order);
    reordered_ = true;
  }
  bool is_reordered() const { return reordered_; }
  const std::vector<std::size_t>& layer_order() const { return order_; }
  std::size_t num_layers() const { return layers_.size(); }
  /// Of a mixture of experts; elsewhere their count is 0.
  const families::ExpertSettings& experts() const { return config_.experts; }
  /// The weight that their balance has in the loss from now on, whatever config.json says; 0: it is no part of it.
  void weigh_balance(double coefficient) {
    config_.experts.auxiliary_loss = coefficient != 0;
    config_.experts.auxiliary_coefficient = coefficient;
  }
  /// Where they are in the module tree.
  std::string layers_name() const { return config_.names.base + "." + config_.names.layers; }

 protected:
  ModelOutput compute(ModelInput in) override;

  struct Pass {  // what the layers leave behind
    at::Tensor hidden;
    std::vector<at::Tensor> states, router_logits;
  };
  /// From ids to the final states; noise and random numbers as `in` and the caller's scope say.
  Pass decode(const ModelInput& in, const DecoderBatch& batch, const nn::GradientSlot& slot);

  families::DecoderConfig config_;

 private:
  void build_base(torch::nn::Module& base, const families::Blueprint& plan, at::ScalarType dtype);
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& positions, const nn::GradientSlot& slot,
                   const at::Tensor& noise);
  struct PassOptions {
    std::vector<KeyValueCache>* caches = nullptr;
    bool want_hidden = false;
    at::Tensor prefix = {};  // ModelInput::prefix
  };
  Pass run(at::Tensor hidden, std::shared_ptr<const DecoderLayout> layout, const PassOptions& options);
  Pass run_layers(at::Tensor hidden, const std::shared_ptr<const DecoderLayout>& layout, const PassOptions& options);
  at::Tensor finish(at::Tensor hidden);
  /// Of the tokens of a batch.
  at::Tensor embed_batch(const ModelInput& in, const DecoderBatch& batch, const nn::GradientSlot& slot);
  ModelOutput compute_parts(const ModelInput& in);
  void check_positions(const at::Tensor& positions) const;
  void place(DecoderLayout& layout, const at::Tensor& positions, std::int64_t length,
             const nn::SequenceRows* documents);
  std::shared_ptr<const DecoderLayout> layout_of(const DecoderBatch& batch, const at::Tensor& attention_mask,
                                                 std::int64_t prefix);
  ModelOutput step(const ModelInput& in);
  nn::Layer& head();
  nn::Weight head_weight();
  bool loss_is_fused(const ModelInput& in);
  at::Tensor logits(const at::Tensor& hidden);
  void loss(const ModelInput& in, const DecoderBatch& batch, const Pass& pass, const nn::GradientSlot& slot,
            ModelOutput& out);
  void score(const ModelInput& in, const DecoderBatch& batch, const Pass& pass, const nn::GradientSlot& slot,
             ModelOutput& out);

  RotaryCache rotary_;
  std::optional<RotaryCache> window_rotary_;
  at::Tensor slopes_;     // [H] float32, linear biases only
  at::Tensor head_bias_;  // [V], of a tied head with a bias
  std::shared_ptr<nn::Embedding> embedding_, positions_;
  std::shared_ptr<nn::Linear> project_in_, project_out_, lm_head_;  // lm_head_: null when tied
  std::shared_ptr<nn::Layer> embedding_norm_, final_norm_;
  std::shared_ptr<nn::Dropout> dropout_;
  std::vector<std::shared_ptr<DecoderLayer>> layers_;
  std::vector<std::size_t> order_;
  bool reordered_ = false;
};

/// Slopes of attention with linear biases (Press et al. 2022) for this many heads, [H] float32.
at::Tensor linear_bias_slopes(std::int64_t heads);

}  // namespace tessera::models
